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

impl Lines {
    /// At the beginning of a text.
    pub fn new() -> Lines {
        Lines {
            at_start: true,
            behind_call: false,
            quoted: false,
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

    /// Goes over text.
    pub fn push(&mut self, text: &str) {
        for c in text.chars() {
            if c == '\n' {
                self.end_line();
            } else {
                self.line.push(c);
                self.at_start &= self.behind_call && c.is_whitespace();
            }
        }
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
        }
    }

    fn ends_in_quotes(&self) -> bool {
        match self.last {
            Some('`') => self.backticks % 2 == 1,
            Some('"') => self.quotes % 2 == 1,
            Some(c) => matches!(c, '“' | '„' | '«'),
            None => false,
        }
    }
}
