//! Metal text as tokens with places.

use std::ops::Range;

use super::{Edit, TranslateError};

/// A word, a number or a sign.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub text: &'a str,
    pub start: usize,
}

impl Token<'_> {
    pub fn end(&self) -> usize {
        self.start + self.text.len()
    }

    /// A name or a keyword.
    pub fn is_word(&self) -> bool {
        self.text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    }
}

/// A directive of the preprocessor.
struct Directive {
    range: Range<usize>,
    text: String,
}

/// A scanned text. Its tokens leave out comments, strings and directives.
pub(super) struct Text<'a> {
    pub tokens: Vec<Token<'a>>,
    directives: Vec<Directive>,
    raw: &'a str,
}

/// Signs of two characters that must not be read as two.
const PAIRS: [&str; 12] = ["::", "&&", "||", "==", "!=", "<=", "*=", "&=", "->", "++", "--", "+="];

impl<'a> Text<'a> {
    /// Scans a text; fails on a comment or a string without an end.
    pub fn new(raw: &'a str) -> Result<Self, TranslateError> {
        let mut text = Self { tokens: Vec::new(), directives: Vec::new(), raw };
        let bytes = raw.as_bytes();
        let mut at = 0;
        let mut line_start = true;
        while at < bytes.len() {
            let rest = &raw[at..];
            let byte = bytes[at];
            let length = match byte {
                b'\n' => {
                    line_start = true;
                    at += 1;
                    continue;
                }
                _ if byte.is_ascii_whitespace() => {
                    at += 1;
                    continue;
                }
                b'/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
                b'/' if rest.starts_with("/*") => match rest[2..].find("*/") {
                    Some(end) => end + 4,
                    None => return Err(text.error(at, "comment without an end")),
                },
                b'"' | b'\'' => match quoted(rest) {
                    Some(end) => end,
                    None => return Err(text.error(at, "string without an end on its line")),
                },
                b'#' if line_start => {
                    let length = directive(rest);
                    let content = rest[..length].trim_start_matches('#').trim_start();
                    let content = content.split("//").next().unwrap_or("").trim_end().to_string();
                    text.directives.push(Directive { range: at..at + length, text: content });
                    length
                }
                _ => {
                    let length = token(rest);
                    text.tokens.push(Token { text: &rest[..length], start: at });
                    length
                }
            };
            line_start = false;
            at += length;
        }
        Ok(text)
    }

    /// Text of a token, empty past the end.
    pub fn at(&self, index: usize) -> &'a str {
        self.tokens.get(index).map_or("", |t| t.text)
    }

    /// The text between two tokens, the last one left out, in one line.
    pub fn between(&self, tokens: Range<usize>) -> String {
        let mut out = String::new();
        let mut end = 0;
        for token in &self.tokens[tokens] {
            if end != 0 && end < token.start {
                out.push(' ');
            }
            out += token.text;
            end = token.end();
        }
        out
    }

    /// Index of the token that closes the bracket at `open`.
    pub fn close(&self, open: usize) -> Result<usize, TranslateError> {
        let (up, down) = match self.at(open) {
            "(" => ("(", ")"),
            "[" => ("[", "]"),
            "<" => ("<", ">"),
            _ => ("{", "}"),
        };
        let mut depth = 0;
        for index in open..self.tokens.len() {
            if self.at(index) == up {
                depth += 1;
            } else if self.at(index) == down {
                depth -= 1;
                if depth == 0 {
                    return Ok(index);
                }
            }
        }
        Err(self.error(self.tokens[open].start, format!("`{up}` without `{down}`")))
    }

    /// Whether the tokens at `index` are `[[`, and then the index behind `]]`.
    pub fn attribute(&self, index: usize) -> Option<usize> {
        let adjacent = |i: usize, sign: &str| {
            self.at(i) == sign
                && self.at(i + 1) == sign
                && self.tokens[i].end() == self.tokens[i + 1].start
        };
        if !adjacent(index, "[") {
            return None;
        }
        (index + 2..self.tokens.len()).find(|&i| adjacent(i, "]")).map(|i| i + 2)
    }

    /// Byte range of tokens.
    pub fn bytes(&self, tokens: Range<usize>) -> Range<usize> {
        self.tokens[tokens.start].start..self.tokens[tokens.end - 1].end()
    }

    /// Lines that ask for unrolling.
    pub fn unroll_pragmas(&self) -> impl Iterator<Item = Range<usize>> {
        let unrolls = |d: &&Directive| {
            d.text.strip_prefix("pragma").is_some_and(|rest| rest.trim().starts_with("unroll"))
        };
        self.directives.iter().filter(unrolls).map(|d| d.range.clone())
    }

    /// Byte ranges that only some devices see: `#if` with a device's macro in its condition, up to its
    /// `#endif`.
    pub fn device_specific(&self) -> Vec<Range<usize>> {
        let mut open: Vec<(usize, bool)> = Vec::new();
        let mut ranges = Vec::new();
        for directive in &self.directives {
            if directive.text.starts_with("if") {
                open.push((directive.range.start, directive.text.contains("__METAL_C")));
            } else if directive.text.starts_with("endif")
                && let Some((start, true)) = open.pop()
            {
                ranges.push(start..directive.range.end);
            }
        }
        ranges
    }

    /// Fails on an attribute that no edit takes away.
    pub fn no_attributes_but(&self, edits: &[Edit]) -> Result<(), TranslateError> {
        for (index, token) in self.tokens.iter().enumerate() {
            let edited = || edits.iter().any(|e| e.range.contains(&token.start));
            if let Some(end) = self.attribute(index)
                && !edited()
            {
                let name = self.between(index..end);
                return Err(self.error(
                    token.start,
                    format!("attribute {name} is not in the dialect, which has kernels' own alone"),
                ));
            }
        }
        Ok(())
    }

    /// An error at a byte of the text.
    pub fn error(&self, at: usize, message: impl Into<String>) -> TranslateError {
        let (mut file, mut line) = ("arguments", 1);
        for (start, content) in lines(&self.raw[..at]) {
            line += 1;
            let whole = self.raw[start..].lines().next().unwrap_or(content);
            if let Some((number, name)) = marker(whole) {
                (file, line) = (name, number);
            }
        }
        TranslateError { file: file.to_string(), line, message: message.into() }
    }
}

/// Complete lines of a text with their first byte.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split_inclusive('\n')
        .scan(0, |start, line| {
            let at = *start;
            *start += line.len();
            Some((at, line))
        })
        .filter(|(_, line)| line.ends_with('\n'))
}

/// Line and file of `#line 12 "file"`.
fn marker(line: &str) -> Option<(usize, &str)> {
    let (number, rest) = line.strip_prefix("#line ")?.split_once(' ')?;
    Some((number.parse().ok()?, rest.trim().trim_matches('"')))
}

/// Bytes of a string or character in quotes.
fn quoted(rest: &str) -> Option<usize> {
    let quote = rest.as_bytes()[0];
    let mut escaped = false;
    for (index, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            b'\n' => return None,
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            _ if byte == quote => return Some(index + 1),
            _ => {}
        }
    }
    None
}

/// Bytes of a directive, with its continued lines and without its last line end.
fn directive(rest: &str) -> usize {
    let mut length = 0;
    for line in rest.split_inclusive('\n') {
        length += line.len();
        if !line.trim_end().ends_with('\\') {
            break;
        }
    }
    rest[..length].trim_end_matches('\n').len()
}

/// Bytes of the token at the start.
fn token(rest: &str) -> usize {
    let first = rest.as_bytes()[0];
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if first.is_ascii_alphabetic() || first == b'_' {
        return rest.find(|c| !is_word(c)).unwrap_or(rest.len());
    }
    if first.is_ascii_digit() {
        return number(rest);
    }
    if PAIRS.iter().any(|pair| rest.starts_with(pair)) {
        return 2;
    }
    rest.chars().next().map_or(1, char::len_utf8)
}

/// Bytes of a number: digits, letters, dots, and signs behind an exponent.
fn number(rest: &str) -> usize {
    let hexadecimal = rest.starts_with("0x") || rest.starts_with("0X");
    let mut before = b'0';
    for (index, byte) in rest.bytes().enumerate() {
        let sign = matches!(byte, b'+' | b'-') && matches!(before, b'e' | b'E') && !hexadecimal;
        if !(byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'_' || sign) {
            return index;
        }
        before = byte;
    }
    rest.len()
}
