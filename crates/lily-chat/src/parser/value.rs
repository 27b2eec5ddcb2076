//! The text of an argument as JSON.

use serde_json::Value;

use super::schema::Types;

/// A number, `true` or `null` is never longer where a string is allowed as well.
const SCALAR_MAX: usize = 64;

/// Writes one argument as JSON while its text arrives.
///
/// A string is written as it comes. Whatever may be of another type waits until it is whole, and is
/// a string if it does not fit its schema.
#[derive(Clone, Debug)]
pub struct ValueWriter {
    types: Types,
    /// Text that waits; unused once the value is known to be a string.
    text: String,
    /// Bytes of white space in front of it.
    lead: usize,
    is_string: bool,
}

impl ValueWriter {
    /// A value of one of these types.
    pub fn new(types: Types) -> ValueWriter {
        ValueWriter { types, text: String::new(), lead: 0, is_string: false }
    }

    /// Whether a string is one of the types: every text fits it.
    pub fn may_be_string(&self) -> bool {
        self.types.has(Types::STRING)
    }

    /// Adds text, and JSON of it to `json`.
    pub fn push(&mut self, text: &str, json: &mut String) {
        if self.is_string {
            escape(text, json);
            return;
        }
        self.text.push_str(text);
        if self.types.has(Types::STRING) && !self.may_be_other() {
            self.is_string = true;
            json.push('"');
            escape(&self.text, json);
            self.text.clear();
        }
    }

    /// Ends the value.
    pub fn finish(self, json: &mut String) {
        if self.is_string {
            json.push('"');
            return;
        }
        let text = self.text.trim_ascii();
        match typed(self.types, text) {
            Some(typed) => json.push_str(typed),
            None => {
                json.push('"');
                escape(&self.text, json);
                json.push('"');
            }
        }
    }

    /// Whether the text so far may begin something other than a string. Once it may not, no more
    /// text changes that.
    fn may_be_other(&mut self) -> bool {
        let bytes = self.text.as_bytes();
        while bytes.get(self.lead).is_some_and(u8::is_ascii_whitespace) {
            self.lead += 1;
        }
        let value = self.text.get(self.lead..).unwrap_or("");
        let Some(first) = value.bytes().next() else {
            // An empty value and white space are strings, but a value may follow.
            return self.types != Types::STRING;
        };
        match first {
            b'{' => return self.types.has(Types::OBJECT),
            b'[' => return self.types.has(Types::ARRAY),
            _ if value.len() > SCALAR_MAX => return false,
            _ => {}
        }
        let value = value.trim_ascii_end();
        let begins = |word: &str| {
            word.get(..value.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(value))
        };
        let is_number = |b: u8| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E');
        (self.types.has(Types::NULL) && "null".starts_with(value))
            || (self.types.has(Types::BOOLEAN) && (begins("true") || begins("false")))
            || (self.types.has(Types::INTEGER.or(Types::NUMBER)) && value.bytes().all(is_number))
    }
}

/// The JSON of a whole value's text.
pub fn json_of(types: Types, text: &str) -> String {
    let (mut writer, mut json) = (ValueWriter::new(types), String::new());
    writer.push(text, &mut json);
    writer.finish(&mut json);
    json
}

/// The JSON text of a value that is not a string; none if it fits none of the types.
fn typed(types: Types, text: &str) -> Option<&str> {
    if types.has(Types::NULL) && text == "null" {
        return Some(text);
    }
    if types.has(Types::BOOLEAN) {
        for word in ["true", "false"] {
            if text.eq_ignore_ascii_case(word) {
                return Some(word);
            }
        }
    }
    // JSON is valid only if it can be read: no number beyond all bounds, no half of a character.
    let fits = match text.as_bytes().first()? {
        b'{' if types.has(Types::OBJECT) => is_json(text),
        b'[' if types.has(Types::ARRAY) => is_json(text),
        b'-' | b'0'..=b'9' if types.has(Types::INTEGER.or(Types::NUMBER)) => {
            match serde_json::from_str::<Value>(text) {
                Ok(Value::Number(number)) => {
                    let whole = || number.as_f64().is_some_and(|number| number.fract() == 0.0);
                    types.has(Types::NUMBER) || !number.is_f64() || whole()
                }
                _ => false,
            }
        }
        _ => false,
    };
    fits.then_some(text)
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok()
}

/// Adds the inside of a JSON string.
pub fn escape(text: &str, json: &mut String) {
    use std::fmt::Write;
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            // Writing to a string cannot fail.
            '\0'..='\x1f' => drop(write!(json, "\\u{:04x}", u32::from(c))),
            _ => json.push(c),
        }
    }
}
