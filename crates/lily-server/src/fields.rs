//! A JSON object that is taken apart field by field, so that none is overlooked.

use std::ops::RangeInclusive;

use axum::http::StatusCode;
use lily_chat::{JsonError, json_kind, parse_json};
use serde_json::{Map, Value};

use crate::error::ApiError;

/// What becomes of fields that are unknown or not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// They are refused.
    Strict,
    /// They are left out and listed.
    Lenient,
}

/// The fields that nobody has asked for yet.
#[derive(Debug)]
pub(crate) struct Fields {
    rest: Map<String, Value>,
    mode: Mode,
    /// In front of names in messages: empty, or such as `messages[2].`.
    path: String,
    /// Accepted although they change nothing.
    ignored: Vec<String>,
}

impl Fields {
    /// The object in a request body.
    pub fn parse(body: &[u8], mode: Mode) -> Result<Self, ApiError> {
        let refuse = |found: String| {
            let message = format!("expected a JSON object as the body, but {found}");
            ApiError::request(StatusCode::BAD_REQUEST, "invalid_json", message)
        };
        match parse_json(body) {
            Ok(Value::Object(rest)) => Ok(Self::new(rest, String::new(), mode)),
            Ok(other) => Err(refuse(format!("found {}", json_kind(&other)))),
            Err(JsonError::Syntax(error)) => Err(refuse(format!("it does not parse: {error}"))),
            Err(JsonError::Repeated(path)) => {
                let path = brief(&path);
                let message = format!("`{path}` is given twice; give it once");
                Err(ApiError::field(path, message))
            }
        }
    }

    /// The object at `path` in a body.
    pub fn nested(value: Value, path: &str, mode: Mode) -> Result<Self, ApiError> {
        match value {
            Value::Object(rest) => Ok(Self::new(rest, format!("{path}."), mode)),
            other => Err(wrong_type(path, "an object", &other)),
        }
    }

    fn new(rest: Map<String, Value>, path: String, mode: Mode) -> Self {
        Self { rest, mode, path, ignored: Vec::new() }
    }

    /// What becomes of fields that are not supported.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// A field's full name.
    pub fn name(&self, field: &str) -> String {
        format!("{}{}", self.path, brief(field))
    }

    /// Takes an object apart; what it ignores is listed with the rest.
    pub fn object<T>(
        &mut self,
        field: &str,
        read: impl FnOnce(&mut Fields) -> Result<T, ApiError>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let mut nested = Self::nested(value, &self.name(field), self.mode)?;
        let read = read(&mut nested)?;
        self.ignored.extend(nested.finish()?);
        Ok(Some(read))
    }

    /// Notes that a field, by its full name, changes nothing.
    pub fn list(&mut self, names: impl IntoIterator<Item = String>) {
        self.ignored.extend(names);
    }

    /// Takes a field; `null` counts as absent.
    pub fn take(&mut self, field: &str) -> Option<Value> {
        self.rest.remove(field).filter(|value| !value.is_null())
    }

    /// Takes a field that is true or false.
    pub fn flag(&mut self, field: &str) -> Result<Option<bool>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(wrong_type(&self.name(field), "true or false", &other)),
        }
    }

    /// Takes a text.
    pub fn text(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(&self.name(field), "a string", &other)),
        }
    }

    /// Takes a number in a range.
    pub fn number(
        &mut self,
        field: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let expected = format!("a number from {} to {}", range.start(), range.end());
        match value.as_f64() {
            Some(number) if range.contains(&number) => Ok(Some(number as f32)),
            _ => Err(wrong_type(&self.name(field), &expected, &value)),
        }
    }

    /// Takes a whole number in a range.
    pub fn integer(
        &mut self,
        field: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let expected = match *range.end() {
            i64::MAX => format!("a whole number of at least {}", range.start()),
            end => format!("a whole number from {} to {end}", range.start()),
        };
        match whole(&value) {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(wrong_type(&self.name(field), &expected, &value)),
        }
    }

    /// Notes fields that are accepted and change nothing.
    pub fn ignore(&mut self, fields: &[&str]) {
        for field in fields {
            if self.take(field).is_some() {
                self.ignored.push(self.name(field));
            }
        }
    }

    /// Refuses a field that is not supported yet, unless its value asks for nothing.
    pub fn refuse(
        &mut self,
        field: &str,
        neutral: impl Fn(&Value) -> bool,
    ) -> Result<(), ApiError> {
        self.refuse_for(field, neutral, "leave it out")
    }

    /// The same, with what to do instead.
    pub fn refuse_for(
        &mut self,
        field: &str,
        neutral: impl Fn(&Value) -> bool,
        advice: &str,
    ) -> Result<(), ApiError> {
        match self.take(field) {
            Some(value) if !neutral(&value) => match self.mode {
                Mode::Strict => Err(self.unsupported(field, &value, advice)),
                Mode::Lenient => {
                    self.ignored.push(self.name(field));
                    Ok(())
                }
            },
            _ => Ok(()),
        }
    }

    fn unsupported(&self, field: &str, value: &Value, advice: &str) -> ApiError {
        let name = self.name(field);
        let message = match value {
            Value::Object(_) | Value::Array(_) => {
                format!("`{name}` is not supported by this server; {advice}")
            }
            value => {
                let value = brief(&value.to_string());
                format!("`{name}` = {value} is not supported by this server; {advice}")
            }
        };
        ApiError::field(name, message)
    }

    /// Refuses what is left over; gives the names of the fields that change nothing.
    pub fn finish(mut self) -> Result<Vec<String>, ApiError> {
        if self.mode == Mode::Lenient {
            let rest = std::mem::take(&mut self.rest);
            let asked = rest.iter().filter(|(_, value)| !value.is_null());
            let names: Vec<String> = asked.map(|(field, _)| self.name(field)).collect();
            self.ignored.extend(names);
        }
        match self.rest.keys().next() {
            None => Ok(self.ignored),
            Some(field) => {
                let name = self.name(field);
                let message =
                    format!("`{name}` is not a field that this server knows; leave it out");
                Err(ApiError::field(name, message))
            }
        }
    }
}

/// A whole number, which may be written with a point: in JSON 3.0 is 3.
pub(crate) fn whole(value: &Value) -> Option<i64> {
    // Above, not every whole number has a place of its own.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let written = |number: &f64| number.fract() == 0.0 && number.abs() <= EXACT;
    value.as_i64().or_else(|| value.as_f64().filter(written).map(|number| number as i64))
}

/// Characters of a client's text that an answer repeats.
const BRIEF: usize = 64;

/// The beginning of a client's text, to be repeated in an answer.
pub(crate) fn brief(text: &str) -> String {
    match text.char_indices().nth(BRIEF) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// A value of the wrong type, or outside of its range.
pub(crate) fn wrong_type(name: &str, expected: &str, found: &Value) -> ApiError {
    let found = match found {
        Value::Number(_) | Value::Bool(_) => found.to_string(),
        other => json_kind(other).to_string(),
    };
    ApiError::field(name, format!("`{name}` should be {expected}, but it is {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Fields {
        Fields::parse(value.to_string().as_bytes(), Mode::Strict).unwrap()
    }

    #[test]
    fn lenient_fields_are_listed_and_wrong_values_are_refused_all_the_same() {
        let body = json!({ "audio": {}, "new": 1, "none": null, "n": "x" }).to_string();
        let mut all = Fields::parse(body.as_bytes(), Mode::Lenient).unwrap();
        all.refuse("audio", |_| false).unwrap();
        assert!(all.integer("n", 1..=4).is_err());
        assert_eq!(all.finish().unwrap(), ["audio", "new"]);
    }

    #[test]
    fn long_names_are_cut_where_they_are_repeated() {
        let all = fields(json!({ "é".repeat(100_000): 1 }));
        let body = all.finish().unwrap_err().body();
        assert_eq!(body["error"]["param"], format!("{}…", "é".repeat(64)));
        assert!(body["error"]["message"].as_str().unwrap().len() < 400);
    }

    #[test]
    fn what_nobody_took_is_refused_by_its_full_name() {
        let mut nested = Fields::nested(json!({ "a": 1, "b": 2 }), "x[0]", Mode::Strict).unwrap();
        nested.take("a");
        let body = nested.finish().unwrap_err().body();
        assert_eq!(body["error"]["param"], "x[0].b");
    }

    #[test]
    fn null_counts_as_absent_and_ignored_fields_are_listed() {
        let mut all = fields(json!({ "n": null, "user": "me", "store": null }));
        assert_eq!(all.take("n"), None);
        all.ignore(&["user", "store"]);
        assert_eq!(all.finish().unwrap(), ["user"]);
    }

    #[test]
    fn numbers_outside_of_their_range_are_refused() {
        let mut all = fields(json!({ "a": 2.5, "b": 0, "c": 1.5, "d": "1" }));
        assert!(all.number("a", 0.0..=2.0).is_err());
        assert!(all.integer("b", 1..=i64::MAX).is_err());
        assert!(all.integer("c", 1..=i64::MAX).is_err());
        assert!(all.number("d", 0.0..=2.0).is_err());
    }

    #[test]
    fn only_objects_are_bodies() {
        for body in ["", "[]", "{", "\"a\"", "{} {}"] {
            let error = Fields::parse(body.as_bytes(), Mode::Strict).unwrap_err().body();
            assert_eq!(error["error"]["code"], "invalid_json", "{body}");
        }
    }
}
