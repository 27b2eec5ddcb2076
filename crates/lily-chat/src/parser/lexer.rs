//! Text to tokens: tags, line feeds, white space and everything else.

/// Longest name in a tag, bytes. The API allows 64 for tools; a longer one is text, so that `<` in
/// prose never waits for long.
const NAME_MAX: usize = 128;

const FUNCTION_OPEN: &str = "<function=";
const PARAMETER_OPEN: &str = "<parameter=";
/// Without its `>`: the model may leave it out or write `/>`.
const PARAMETER_CLOSE: &str = "</parameter";

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One line feed.
    LineFeed,
    /// Other white space.
    Space,
    /// Anything else, without `<` except in front.
    Plain,
    /// `</think>`
    ThinkClose,
    /// `<tool_call>`
    ToolCallOpen,
    /// `</tool_call>`
    ToolCallClose,
    /// `<function=NAME>`
    FunctionOpen,
    /// `</function>`
    FunctionClose,
    /// `<parameter=NAME>`
    ParameterOpen,
    /// `</parameter>`
    ParameterClose,
    /// `</parameter/>`, or `</parameter` in front of white space, of a tag or of the end.
    ParameterCloseMangled,
}

/// Which tags mean something where the text is read. Others are plain text and never wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted(u8);

impl Wanted {
    pub const NONE: Wanted = Wanted(0);
    pub const THINK_CLOSE: Wanted = Wanted(1);
    pub const TOOL_CALL_OPEN: Wanted = Wanted(2);
    pub const TOOL_CALL_CLOSE: Wanted = Wanted(4);
    pub const FUNCTION_OPEN: Wanted = Wanted(8);
    pub const FUNCTION_CLOSE: Wanted = Wanted(16);
    pub const PARAMETER_OPEN: Wanted = Wanted(32);
    pub const PARAMETER_CLOSE: Wanted = Wanted(64);
    /// Everything that a call consists of.
    pub const CALL: Wanted = Wanted(2 + 4 + 8 + 16 + 32 + 64);

    pub const fn and(self, other: Wanted) -> Wanted {
        Wanted(self.0 | other.0)
    }

    fn has(self, other: Wanted) -> bool {
        self.0 & other.0 != 0
    }
}

const LITERALS: [(Wanted, &str, Kind); 4] = [
    (Wanted::THINK_CLOSE, "</think>", Kind::ThinkClose),
    (Wanted::TOOL_CALL_OPEN, "<tool_call>", Kind::ToolCallOpen),
    (Wanted::TOOL_CALL_CLOSE, "</tool_call>", Kind::ToolCallClose),
    (Wanted::FUNCTION_CLOSE, "</function>", Kind::FunctionClose),
];

/// Whether more text is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    Open,
    Ended,
}

#[derive(Debug)]
enum Match {
    No,
    /// The text ends before it is settled.
    Cut,
    Yes(Kind, usize),
}

/// Reads tokens from the front of a text that grows.
#[derive(Clone, Debug, Default)]
pub struct Lexer {
    /// Bytes of a name that were looked at before the text ran out.
    name_seen: usize,
    /// Bytes looked at in all: the measure of work.
    pub work: u64,
}

impl Lexer {
    /// The token in front of `text` and its length in bytes; none if there is no text, or if more
    /// text must come first.
    pub fn next(&mut self, text: &str, wanted: Wanted, rest: Rest) -> Option<(Kind, usize)> {
        let first = *text.as_bytes().first()?;
        if first == b'<' {
            match self.tag(text, wanted, rest) {
                Match::Yes(kind, len) => {
                    self.name_seen = 0;
                    return Some((kind, len));
                }
                Match::Cut if rest == Rest::Open => return None,
                Match::Cut | Match::No => self.name_seen = 0,
            }
        }
        if first == b'\n' {
            self.work += 1;
            return Some((Kind::LineFeed, 1));
        }
        let is_space = |b: &u8| b.is_ascii_whitespace();
        let (kind, len) = if is_space(&first) {
            let ends = |b: &u8| !is_space(b) || *b == b'\n';
            (Kind::Space, text.bytes().position(|b| ends(&b)))
        } else {
            let ends = |b: u8| b == b'<' || is_space(&b);
            (Kind::Plain, text.bytes().skip(1).position(ends).map(|n| n + 1))
        };
        let len = len.unwrap_or(text.len());
        self.work += len as u64;
        Some((kind, len))
    }

    /// Text is read from another place.
    pub fn restart(&mut self) {
        self.name_seen = 0;
    }

    fn tag(&mut self, text: &str, wanted: Wanted, rest: Rest) -> Match {
        let mut cut = false;
        for (_, literal, kind) in LITERALS.into_iter().filter(|&(tag, ..)| wanted.has(tag)) {
            self.work += literal.len().min(text.len()) as u64;
            if text.starts_with(literal) {
                return Match::Yes(kind, literal.len());
            }
            cut |= literal.starts_with(text);
        }
        let names = [
            (Wanted::FUNCTION_OPEN, FUNCTION_OPEN, Kind::FunctionOpen),
            (Wanted::PARAMETER_OPEN, PARAMETER_OPEN, Kind::ParameterOpen),
        ];
        for (_, head, kind) in names.into_iter().filter(|&(tag, ..)| wanted.has(tag)) {
            self.work += head.len().min(text.len()) as u64;
            match text.strip_prefix(head) {
                Some(name) => match self.name(name) {
                    Match::Yes(_, len) => return Match::Yes(kind, head.len() + len),
                    other => return other,
                },
                None => cut |= head.starts_with(text),
            }
        }
        if wanted.has(Wanted::PARAMETER_CLOSE) {
            self.work += PARAMETER_CLOSE.len().min(text.len()) as u64;
            match text.strip_prefix(PARAMETER_CLOSE) {
                Some(after) => return parameter_close(after, rest),
                None => cut |= PARAMETER_CLOSE.starts_with(text),
            }
        }
        if cut { Match::Cut } else { Match::No }
    }

    /// The rest of a tag from its name on.
    fn name(&mut self, text: &str) -> Match {
        for (i, b) in text.bytes().enumerate().skip(self.name_seen) {
            self.work += 1;
            match b {
                b'>' if i > 0 => return Match::Yes(Kind::Plain, i + 1),
                b'<' | b'>' | b'\n' => return Match::No,
                _ if i == NAME_MAX => return Match::No,
                _ => {}
            }
        }
        self.name_seen = text.len();
        Match::Cut
    }
}

fn parameter_close(after: &str, rest: Rest) -> Match {
    let len = PARAMETER_CLOSE.len();
    let bytes = after.as_bytes();
    match (bytes.first(), bytes.get(1)) {
        (Some(b'>'), _) => Match::Yes(Kind::ParameterClose, len + 1),
        (Some(b'/'), Some(b'>')) => Match::Yes(Kind::ParameterCloseMangled, len + 2),
        (Some(b'<'), _) => Match::Yes(Kind::ParameterCloseMangled, len),
        (Some(b), _) if b.is_ascii_whitespace() => Match::Yes(Kind::ParameterCloseMangled, len),
        (None, _) if rest == Rest::Ended => Match::Yes(Kind::ParameterCloseMangled, len),
        (None, _) | (Some(b'/'), None) => Match::Cut,
        _ => Match::No,
    }
}

/// The name in a [`Kind::FunctionOpen`] or [`Kind::ParameterOpen`].
pub fn name_in(tag: &str) -> &str {
    let name = tag.strip_prefix(FUNCTION_OPEN).or_else(|| tag.strip_prefix(PARAMETER_OPEN));
    name.and_then(|name| name.strip_suffix('>')).unwrap_or("")
}

/// Whether `cut` may be the beginning of `</function>` or of `</tool_call>`.
pub fn begins_closer(cut: &str, closer: Kind) -> bool {
    let literal = LITERALS.into_iter().find(|&(_, _, kind)| kind == closer);
    cut.len() > 1 && literal.is_some_and(|(_, literal, _)| literal.starts_with(cut))
}

/// Whether `cut` may be the beginning of `<function=NAME>` with one of `names`.
pub fn begins_function<'a>(cut: &str, mut names: impl Iterator<Item = &'a str>) -> bool {
    match cut.strip_prefix(FUNCTION_OPEN) {
        None => FUNCTION_OPEN.starts_with(cut),
        Some(cut) => names.any(|name| name.starts_with(cut)),
    }
}

/// Whether `cut` may be the beginning of `<parameter=NAME>` or of `</function>`.
pub fn begins_body(cut: &str) -> bool {
    PARAMETER_OPEN.starts_with(cut)
        || cut.starts_with(PARAMETER_OPEN)
        || begins_closer(cut, Kind::FunctionClose)
}
