//! Telling a client's text from the template's own after both are rendered.
//!
//! Each string of the client goes into the template between two characters that occur nowhere
//! else. The string functions of the template see through them ([`Marks::read`]), so that it
//! renders as without them, and afterwards they say which bytes the client wrote.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use minijinja::Value;
use serde_json::Value as Json;

use crate::TextError;

/// Deeper values would exhaust the stack; JSON parsers stop at 128.
const MAX_DEPTH: usize = 200;

/// The characters around a client's string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marks {
    pub open: char,
    pub close: char,
}

impl Default for Marks {
    /// Two of the code points that Unicode reserves for use inside programs.
    fn default() -> Marks {
        Marks { open: '\u{fdd0}', close: '\u{fdd1}' }
    }
}

/// A string without its marks, and the byte ranges that are a client's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Marked {
    pub raw: String,
    pub client: Vec<Range<usize>>,
}

impl Marks {
    pub fn is_mark(self, c: char) -> bool {
        c == self.open || c == self.close
    }

    fn wrap(self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 6);
        out.push(self.open);
        out.push_str(text);
        out.push(self.close);
        out
    }

    /// Takes the marks out. Templates may cut strings anywhere: a mark without its partner counts
    /// from the beginning, or to the end.
    pub fn read(self, text: &str) -> Marked {
        self.take_out(text).0
    }

    /// The same for a whole rendering, where marks without partner mean that the template did
    /// something to strings that cannot be followed.
    pub fn read_strict(self, text: &str) -> Option<Marked> {
        let (marked, paired) = self.take_out(text);
        paired.then_some(marked)
    }

    fn take_out(self, text: &str) -> (Marked, bool) {
        let mut out = Marked { raw: String::with_capacity(text.len()), client: Vec::new() };
        let mut start = None;
        let mut paired = true;
        for c in text.chars() {
            if c == self.open {
                paired &= start.is_none();
                start.get_or_insert(out.raw.len());
            } else if c == self.close {
                paired &= start.is_some();
                let begin = start.take().unwrap_or(0);
                out.add(begin..out.raw.len());
            } else {
                out.raw.push(c);
            }
        }
        if let Some(begin) = start {
            paired = false;
            out.add(begin..out.raw.len());
        }
        (out, paired)
    }

    /// Part of a string, marked again. `range` is on character boundaries of `raw`.
    pub fn write(self, text: &Marked, range: Range<usize>) -> String {
        let mut out = String::with_capacity(range.len() + 6);
        let mut at = range.start;
        for client in &text.client {
            let (start, end) = (client.start.max(at), client.end.min(range.end));
            if start >= end {
                continue;
            }
            out.push_str(&text.raw[at..start]);
            out.push(self.open);
            out.push_str(&text.raw[start..end]);
            out.push(self.close);
            at = end;
        }
        out.push_str(&text.raw[at..range.end]);
        out
    }
}

impl Marked {
    fn add(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        match self.client.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => self.client.push(range),
        }
    }
}

/// How a client's strings look inside the template.
pub(super) enum Dress {
    /// As they are.
    Bare,
    /// Between marks.
    Marked(Marks),
    /// With the characters that control tokens begin with exchanged.
    Exchanged(Vec<(char, char)>),
}

impl Dress {
    fn dress<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self {
            _ if is_word(text) => Cow::Borrowed(text),
            Dress::Bare => Cow::Borrowed(text),
            Dress::Marked(marks) => Cow::Owned(marks.wrap(text)),
            Dress::Exchanged(table) => {
                let exchange =
                    |c| table.iter().find(|(from, _)| *from == c).map_or(c, |(_, to)| *to);
                Cow::Owned(text.chars().map(exchange).collect())
            }
        }
    }

    /// A client's value for the template, its strings and keys dressed.
    pub fn value(&self, json: &Json) -> Value {
        match json {
            Json::Null => Value::from(()),
            Json::Bool(b) => Value::from(*b),
            Json::Number(n) => match (n.as_i64(), n.as_u64()) {
                (Some(n), _) => Value::from(n),
                (_, Some(n)) => Value::from(n),
                _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Value::from(self.dress(text).as_ref()),
            Json::Array(items) => self.list(items),
            Json::Object(fields) => {
                let pairs = fields
                    .iter()
                    .map(|(key, value)| (Value::from(self.dress(key).as_ref()), self.value(value)));
                Value::from_pairs(pairs)
            }
        }
    }

    pub fn list(&self, items: &[Json]) -> Value {
        Value::from(items.iter().map(|item| self.value(item)).collect::<Vec<Value>>())
    }

    /// Undoes the exchange in a rendering.
    pub fn undo_exchange(&self, text: &str) -> Marked {
        let Dress::Exchanged(table) = self else {
            return Marked { raw: text.to_owned(), client: Vec::new() };
        };
        let mut out = Marked { raw: String::with_capacity(text.len()), client: Vec::new() };
        for c in text.chars() {
            let start = out.raw.len();
            match table.iter().find(|(_, to)| *to == c) {
                Some((from, _)) => {
                    out.raw.push(*from);
                    out.add(start..out.raw.len());
                }
                None => out.raw.push(c),
            }
        }
        out
    }
}

/// Names such as roles, kinds of parts and fields. Templates compare them with `==`, which marks
/// would disturb, and no control token can be spelled with these characters alone.
fn is_word(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

/// Whether a token could be spelled by a [`is_word`] string.
pub(crate) fn is_word_like(text: &str) -> bool {
    is_word(text)
}

/// What a look at a client's strings finds.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Bytes of the request, as JSON, roughly.
    pub bytes: usize,
    /// A string holds one of the characters that were looked for.
    pub found: bool,
    /// A string holds one of the default marks.
    pub has_marks: bool,
}

impl Scan {
    /// Looks through values for characters.
    pub fn look<'a>(
        values: impl Iterator<Item = &'a Json>,
        wanted: &[char],
    ) -> Result<Scan, TextError> {
        let mut scan = Scan::default();
        for value in values {
            scan.value(value, wanted, 0)?;
        }
        Ok(scan)
    }

    fn value(&mut self, json: &Json, wanted: &[char], depth: usize) -> Result<(), TextError> {
        if depth > MAX_DEPTH {
            return Err(TextError::Request {
                field: "a value of the conversation".into(),
                expected: "nested at most 200 deep",
                found: "it is deeper".into(),
            });
        }
        self.bytes += 8;
        match json {
            Json::String(text) => self.text(text, wanted),
            Json::Array(items) => {
                for item in items {
                    self.value(item, wanted, depth + 1)?;
                }
            }
            Json::Object(fields) => {
                for (key, value) in fields {
                    self.text(key, wanted);
                    self.value(value, wanted, depth + 1)?;
                }
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
        Ok(())
    }

    fn text(&mut self, text: &str, wanted: &[char]) {
        self.bytes += text.len();
        self.found |= text.contains(wanted);
        let marks = Marks::default();
        self.has_marks |= text.contains(|c| marks.is_mark(c));
    }
}

/// Characters without meaning that no string of the client and no template holds.
pub(super) fn unused_characters<'a>(
    values: impl Iterator<Item = &'a Json>,
    source: &str,
    n: usize,
) -> Result<Vec<char>, TextError> {
    let mut used: HashSet<char> = source.chars().collect();
    for value in values {
        collect(value, &mut used);
    }
    let inside_programs = '\u{fdd0}'..='\u{fdef}';
    let private = ('\u{e000}'..='\u{f8ff}').chain('\u{f0000}'..='\u{ffffd}');
    let free: Vec<char> =
        inside_programs.chain(private).filter(|c| !used.contains(c)).take(n).collect();
    if free.len() < n {
        return Err(TextError::Request {
            field: "the conversation".into(),
            expected: "text that leaves some private-use characters free",
            found: "it holds all of them".into(),
        });
    }
    Ok(free)
}

fn collect(json: &Json, used: &mut HashSet<char>) {
    match json {
        Json::String(text) => used.extend(text.chars()),
        Json::Array(items) => items.iter().for_each(|item| collect(item, used)),
        Json::Object(fields) => fields.iter().for_each(|(key, value)| {
            used.extend(key.chars());
            collect(value, used);
        }),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_marked_string_keep_their_marks() {
        let marks = Marks::default();
        let text = format!("ab{}cd", marks.wrap("XYZ"));
        let read = marks.read(&text);
        assert_eq!((read.raw.as_str(), read.client.as_slice()), ("abXYZcd", &[2..5][..]));
        assert_eq!(marks.write(&read, 0..7), text);
        assert_eq!(marks.write(&read, 3..6), format!("{}c", marks.wrap("YZ")));
        assert_eq!(marks.write(&read, 5..7), "cd");
        assert_eq!(marks.write(&read, 5..5), "");
    }

    #[test]
    fn a_mark_without_partner_counts_to_the_edge_and_is_noticed() {
        let marks = Marks::default();
        let cut = format!("X{}y{}Z", marks.close, marks.open);
        assert_eq!(marks.read(&cut), Marked { raw: "XyZ".into(), client: vec![0..1, 2..3] });
        assert_eq!(marks.read_strict(&cut), None);
    }

    #[test]
    fn neighbouring_client_strings_become_one_range() {
        let marks = Marks::default();
        let text = format!("{}{}", marks.wrap("<|im_"), marks.wrap("end|>"));
        assert_eq!(marks.read(&text).client, [0..10]);
    }

    #[test]
    fn other_characters_are_found_when_the_usual_ones_are_taken() {
        let taken = Json::String("\u{fdd0}\u{fdd1}".into());
        let free = unused_characters([&taken].into_iter(), "\u{fdd2}", 2).unwrap();
        assert_eq!(free, ['\u{fdd3}', '\u{fdd4}']);
    }
}
