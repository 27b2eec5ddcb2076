//! Values as Python writes them: `json.dumps`, `str` and `repr`.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Deeper values would exhaust the stack.
const MAX_DEPTH: usize = 250;

/// The arguments of `json.dumps` that templates use.
pub(super) struct JsonStyle {
    pub ensure_ascii: bool,
    /// The text of one step of indentation.
    pub indent: Option<String>,
    /// Between items, and between a key and its value.
    pub separators: (String, String),
    pub sort_keys: bool,
}

/// `json.dumps(value, …)`. Characters for which `transparent` holds are never escaped.
pub(super) fn to_json(
    value: &Value,
    style: &JsonStyle,
    transparent: impl Fn(char) -> bool,
) -> Result<String, Error> {
    let mut writer = Json { style, transparent, out: String::new() };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Json<'a, F> {
    style: &'a JsonStyle,
    transparent: F,
    out: String,
}

impl<F: Fn(char) -> bool> Json<'_, F> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value, "NaN", "Infinity")),
            ValueKind::String => self.string(value.as_str().unwrap_or("")),
            ValueKind::Seq | ValueKind::Iterable => {
                self.out.push('[');
                let mut first = true;
                for item in value.try_iter()? {
                    self.separate(&mut first, depth + 1);
                    self.value(&item, depth + 1)?;
                }
                self.close(']', first, depth);
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.style.sort_keys {
                    keys.sort();
                }
                self.out.push('{');
                let mut first = true;
                for key in keys {
                    self.separate(&mut first, depth + 1);
                    match key.kind() {
                        ValueKind::String => self.string(key.as_str().unwrap_or("")),
                        ValueKind::Number | ValueKind::Bool | ValueKind::None => {
                            self.out.push('"');
                            self.value(&key, depth + 1)?;
                            self.out.push('"');
                        }
                        kind => return Err(unserializable(kind)),
                    }
                    self.out.push_str(&self.style.separators.1);
                    self.value(&value.get_item(&key)?, depth + 1)?;
                }
                self.close('}', first, depth);
            }
            kind => return Err(unserializable(kind)),
        }
        Ok(())
    }

    fn separate(&mut self, first: &mut bool, depth: usize) {
        if !std::mem::take(first) {
            self.out.push_str(&self.style.separators.0);
        }
        self.new_line(depth);
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.style.ensure_ascii && c > '~') => {
                    if (self.transparent)(c) {
                        self.out.push(c);
                    } else {
                        let mut units = [0; 2];
                        for unit in c.encode_utf16(&mut units) {
                            // Writing to a string cannot fail.
                            let _ = write!(self.out, "\\u{unit:04x}");
                        }
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn unserializable(kind: ValueKind) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value of type {kind} is not JSON"))
}

/// `str(value)`; undefined is empty, as Jinja prints it.
pub(super) fn to_str(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut out = String::new();
    repr(value, &mut out, 0)?;
    Ok(out)
}

/// `repr(value)` of plain data; what a template defines prints as the engine names it.
fn repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "value is nested too deeply"));
    }
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value, "nan", "inf")),
        ValueKind::String => quote(value.as_str().unwrap_or(""), out),
        ValueKind::Seq => {
            let brackets = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(brackets.0);
            let mut n_items = 0;
            for item in value.try_iter()? {
                if n_items > 0 {
                    out.push_str(", ");
                }
                repr(&item, out, depth + 1)?;
                n_items += 1;
            }
            if value.is_tuple() && n_items == 1 {
                out.push(',');
            }
            out.push(brackets.1);
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                repr(&key, out, depth + 1)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == mark => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() || (c.is_whitespace() && c != ' ') => {
                let code = u32::from(c);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    _ => write!(out, "\\u{code:04x}"),
                };
            }
            c => out.push(c),
        }
    }
    out.push(mark);
}

fn number(value: &Value, nan: &str, infinity: &str) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(x) if x.is_nan() => nan.to_owned(),
        Ok(x) if x.is_infinite() => format!("{}{infinity}", if x < 0.0 { "-" } else { "" }),
        Ok(x) => float(x),
        Err(_) => value.to_string(),
    }
}

/// `repr(x)` of a finite float: the shortest digits that read back the same, with an exponent below
/// 1e-4 and from 1e16 up.
fn float(x: f64) -> String {
    let shortest = format!("{x:e}");
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let fixed = format!("{x}");
        return if fixed.contains('.') { fixed } else { fixed + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// What `str.strip()` of Python removes: white space and four separators that Rust leaves out.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_python_prints_them() {
        // Left: the value. Right: what Python 3 prints for it.
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.2345e-7, "1.2345e-07"),
            (123456789.125, "123456789.125"),
            (5e-324, "5e-324"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (9007199254740993.0, "9007199254740992.0"),
        ];
        for (value, wanted) in cases {
            assert_eq!(float(value), wanted);
        }
    }
}
