//! Python's string methods and the filters that look at strings, blind to marks.

use std::ops::Range;

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::client::{Marked, Marks};
use super::python::{is_space, to_str};

/// Which ends of a string.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
    Both,
}

/// A method that the engine does not know, called on a value.
pub(super) fn call(
    marks: Marks,
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, method, args);
    };
    // Every call reads the string once more than the engine knows.
    state.consume_fuel((text.len() / 64) as u64)?;
    let text = Text { marks, marked: marks.read(text) };
    match method {
        "strip" => text.strip(args, Side::Both),
        "lstrip" => text.strip(args, Side::Left),
        "rstrip" => text.strip(args, Side::Right),
        "startswith" => text.affix(args, |text, affix| text.starts_with(affix)),
        "endswith" => text.affix(args, |text, affix| text.ends_with(affix)),
        "removeprefix" => {
            let (affix,): (&str,) = from_args(args)?;
            let cut = text
                .raw()
                .strip_prefix(marks.read(affix).raw.as_str())
                .map_or(0, |rest| text.raw().len() - rest.len());
            Ok(text.part(cut..text.raw().len()))
        }
        "removesuffix" => {
            let (affix,): (&str,) = from_args(args)?;
            let rest = text.raw().strip_suffix(marks.read(affix).raw.as_str());
            Ok(text.part(0..rest.map_or(text.raw().len(), str::len)))
        }
        "split" => text.split(args, Side::Left),
        "rsplit" => text.split(args, Side::Right),
        "splitlines" => text.split_lines(args),
        "find" | "rfind" | "count" | "isalnum" | "isalpha" | "isascii" | "isdigit" | "islower"
        | "isnumeric" | "isupper" => {
            let bare = Value::from(text.raw());
            let args: Vec<Value> = args
                .iter()
                .map(|arg| match arg.as_str() {
                    Some(arg) => Value::from(marks.read(arg).raw),
                    None => arg.clone(),
                })
                .collect();
            pycompat::unknown_method_callback(state, &bare, method, &args)
        }
        "isspace" => {
            let () = from_args(args)?;
            Ok(Value::from(!text.raw().is_empty() && text.raw().chars().all(is_space)))
        }
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// The `trim` filter.
pub(super) fn trim(marks: Marks, value: &Value, chars: Option<&str>) -> Result<Value, Error> {
    let text = Text { marks, marked: marks.read(&to_str(value)?) };
    let chars = chars.map(|chars| marks.read(chars).raw);
    Ok(text.part(trimmed(text.raw(), chars.as_deref(), Side::Both)))
}

/// The `length` filter: characters of a string, items of anything else.
pub(super) fn length(marks: Marks, value: &Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return Ok(Value::from(text.chars().filter(|&c| !marks.is_mark(c)).count()));
    }
    if value.is_undefined() {
        return Ok(Value::from(0));
    }
    match value.len() {
        Some(n) => Ok(Value::from(n)),
        None if value.kind() == ValueKind::Iterable => Ok(Value::from(value.try_iter()?.count())),
        None => {
            let detail = format!("a value of type {} has no length", value.kind());
            Err(Error::new(ErrorKind::InvalidOperation, detail))
        }
    }
}

struct Text {
    marks: Marks,
    marked: Marked,
}

impl Text {
    fn raw(&self) -> &str {
        &self.marked.raw
    }

    fn part(&self, range: Range<usize>) -> Value {
        Value::from(self.marks.write(&self.marked, range))
    }

    fn parts(&self, ranges: Vec<Range<usize>>) -> Value {
        Value::from(ranges.into_iter().map(|range| self.part(range)).collect::<Vec<Value>>())
    }

    fn strip(&self, args: &[Value], side: Side) -> Result<Value, Error> {
        let (chars,): (Option<&str>,) = from_args(args)?;
        let chars = chars.map(|chars| self.marks.read(chars).raw);
        Ok(self.part(trimmed(self.raw(), chars.as_deref(), side)))
    }

    /// `startswith` and `endswith`: one string, or any of a tuple.
    fn affix(&self, args: &[Value], test: fn(&str, &str) -> bool) -> Result<Value, Error> {
        let (affix,): (&Value,) = from_args(args)?;
        let matches = |affix: &Value| match affix.as_str() {
            Some(affix) => Ok(test(self.raw(), &self.marks.read(affix).raw)),
            None => Err(Error::new(ErrorKind::InvalidOperation, "expected a string")),
        };
        if matches!(affix.kind(), ValueKind::Seq) {
            for affix in affix.try_iter()? {
                if matches(&affix)? {
                    return Ok(Value::from(true));
                }
            }
            return Ok(Value::from(false));
        }
        matches(affix).map(Value::from)
    }

    /// `split` and `rsplit`, which differ in the end that `maxsplit` counts from.
    fn split(&self, args: &[Value], from: Side) -> Result<Value, Error> {
        let (separator, limit, named): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
        let separator = match separator {
            Some(separator) => Some(separator),
            None => named.get("sep")?,
        };
        let limit = limit.or(named.get("maxsplit")?).and_then(|n| usize::try_from(n).ok());
        named.assert_all_used()?;
        let limit = limit.unwrap_or(usize::MAX);
        let raw = self.raw();
        let gaps: Vec<Range<usize>> = match separator.filter(|separator| !separator.is_none()) {
            None => return Ok(self.parts(words(raw, limit, from))),
            Some(separator) => {
                let Some(separator) = separator.as_str() else {
                    return Err(Error::new(ErrorKind::InvalidOperation, "expected a string"));
                };
                let separator = self.marks.read(separator).raw;
                if separator.is_empty() {
                    return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
                }
                let gap = |(at, found): (usize, &str)| at..at + found.len();
                if from == Side::Left {
                    raw.match_indices(&separator).take(limit).map(gap).collect()
                } else {
                    let mut gaps: Vec<_> =
                        raw.rmatch_indices(&separator).take(limit).map(gap).collect();
                    gaps.reverse();
                    gaps
                }
            }
        };
        let mut ranges = Vec::with_capacity(gaps.len() + 1);
        let mut start = 0;
        for gap in gaps {
            ranges.push(start..gap.start);
            start = gap.end;
        }
        ranges.push(start..raw.len());
        Ok(self.parts(ranges))
    }

    fn split_lines(&self, args: &[Value]) -> Result<Value, Error> {
        let (keep, named): (Option<bool>, Kwargs) = from_args(args)?;
        let keep = keep.or(named.get("keepends")?).unwrap_or(false);
        named.assert_all_used()?;
        let raw = self.raw();
        let mut ranges = Vec::new();
        let mut start = 0;
        let mut chars = raw.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            if !is_line_end(c) {
                continue;
            }
            let mut end = at + c.len_utf8();
            if c == '\r' && chars.peek().is_some_and(|&(_, next)| next == '\n') {
                chars.next();
                end += 1;
            }
            ranges.push(start..if keep { end } else { at });
            start = end;
        }
        if start < raw.len() {
            ranges.push(start..raw.len());
        }
        Ok(self.parts(ranges))
    }
}

/// Where the text stands without the characters at its ends; `None` means white space.
fn trimmed(text: &str, chars: Option<&str>, side: Side) -> Range<usize> {
    let cut = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let start = match side {
        Side::Right => 0,
        _ => text.find(|c| !cut(c)).unwrap_or(text.len()),
    };
    let end = match side {
        Side::Left => text.len(),
        _ => start + text[start..].trim_end_matches(cut).len(),
    };
    start..end
}

/// The words between white space. With a limit the rest stays whole, trimmed at its outer end.
fn words(text: &str, limit: usize, from: Side) -> Vec<Range<usize>> {
    let mut words = Vec::new();
    if from == Side::Left {
        let mut start = trimmed(text, None, Side::Left).start;
        while start < text.len() {
            let rest = &text[start..];
            let end = match rest.find(is_space) {
                Some(end) if words.len() < limit => start + end,
                _ => text.len(),
            };
            words.push(start..end);
            start = end + trimmed(&text[end..], None, Side::Left).start;
        }
        return words;
    }
    let mut end = trimmed(text, None, Side::Right).end;
    while end > 0 {
        let rest = &text[..end];
        let start = match rest.char_indices().rev().find(|&(_, c)| is_space(c)) {
            Some((at, c)) if words.len() < limit => at + c.len_utf8(),
            _ => 0,
        };
        words.push(start..end);
        end = trimmed(&text[..start], None, Side::Right).end;
    }
    words.reverse();
    words
}

fn is_line_end(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}
