//! Where a line begins, and whether it stands in a code fence or in quotes.

/// Follows text, and tells where a tool call may begin.
///
/// A call may begin at the first character of a line: not in a code fence, and not behind a line
/// that ends with a backtick or a double quote that it opens and does not close.
#[derive(Clone, Debug)]
pub struct Lines {
    /// Nothing of the line was seen yet.
    at_start: bool,
    /// White space does not end the start of the line.
    behind_call: bool,
    /// The last line ended inside backticks or quotes.
    quoted: bool,
    /// Bytes of `<tool_call>` that the text ends with; all of them also with white space behind.
    outer_tag: usize,
    /// Character and length of the fence that is open.
    fence: Option<(char, usize)>,
    line: Line,
}

/// What was seen of a line.
#[derive(Clone, Debug, Default)]
struct Line {
    part: Part,
    /// The run of backticks or tildes that the line begins with, white space aside.
    mark: Option<(char, usize)>,
    /// Something other than white space stands behind it.
    rest: bool,
    /// A backtick stands there.
    rest_backtick: bool,
    backticks: usize,
    quotes: usize,
    /// Last character that is not white space.
    last: Option<char>,
    /// The character in front of it, also white space.
    before_last: Option<char>,
    previous: Option<char>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Indent,
    Mark,
    Rest,
}

/// A run of this length at the beginning of a line is a code fence.
const FENCE: usize = 3;

const OUTER_TAG: &str = "<tool_call>";

impl Lines {
    /// At the beginning of a text.
    pub fn new() -> Lines {
        Lines {
            at_start: true,
            behind_call: false,
            quoted: false,
            outer_tag: 0,
            fence: None,
            line: Line::default(),
        }
    }

    /// Behind a tool call: another one may follow on the same line.
    pub fn behind_call() -> Lines {
        Lines { behind_call: true, ..Lines::new() }
    }

    /// Whether a tool call may begin here.
    pub fn can_open(&self) -> bool {
        self.at_start && self.fence.is_none() && !self.quoted
    }

    /// Whether the text ends with an outer tag that began no call: what it holds is no call either.
    pub fn is_behind_outer_tag(&self) -> bool {
        self.outer_tag == OUTER_TAG.len()
    }

    /// Goes over text.
    pub fn push(&mut self, text: &str) {
        for c in text.chars() {
            self.match_outer_tag(c);
            if c == '\n' {
                self.end_line();
            } else {
                self.line.push(c);
                self.at_start &= self.behind_call && c.is_whitespace();
            }
        }
    }

    fn match_outer_tag(&mut self, c: char) {
        if self.is_behind_outer_tag() && c.is_whitespace() {
            return;
        }
        // `<` stands only in front of the tag.
        let next = OUTER_TAG.get(self.outer_tag..).is_some_and(|rest| rest.starts_with(c));
        self.outer_tag = if next { self.outer_tag + 1 } else { usize::from(c == '<') };
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let mark = line.mark.filter(|&(_, len)| len >= FENCE);
        let was_open = self.fence.is_some();
        match (self.fence, mark) {
            (None, Some((c, len))) if c == '~' || !line.rest_backtick => {
                self.fence = Some((c, len));
            }
            (Some((open, least)), Some((c, len))) if c == open && len >= least && !line.rest => {
                self.fence = None;
            }
            _ => {}
        }
        self.quoted = !was_open && mark.is_none() && line.ends_in_quotes();
        self.at_start = true;
    }
}

impl Line {
    fn push(&mut self, c: char) {
        let previous = self.previous.replace(c);
        match (self.part, &mut self.mark) {
            (Part::Indent, _) if c.is_whitespace() => return,
            (Part::Indent, mark) if matches!(c, '`' | '~') => {
                *mark = Some((c, 1));
                self.part = Part::Mark;
            }
            (Part::Mark, Some((mark, len))) if *mark == c => *len += 1,
            _ => {
                self.part = Part::Rest;
                self.rest |= !c.is_whitespace();
                self.rest_backtick |= c == '`';
            }
        }
        self.backticks += usize::from(c == '`');
        self.quotes += usize::from(c == '"');
        if !c.is_whitespace() {
            self.last = Some(c);
            self.before_last = previous;
        }
    }

    fn ends_in_quotes(&self) -> bool {
        // A mark that opens has no word in front of it.
        let opens = self.before_last.is_none_or(|c| c.is_whitespace() || "([{:=,".contains(c));
        match self.last {
            Some('`') => opens && self.backticks % 2 == 1,
            Some('"') => opens && self.quotes % 2 == 1,
            Some(c) => matches!(c, '“' | '„' | '«'),
            None => false,
        }
    }
}
