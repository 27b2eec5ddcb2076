//! JSON in which no key is given twice.
//!
//! Parsers differ in which of two equal keys they take, so that a request with both could mean one
//! thing to whoever checked it and another one here.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Why a text has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// It is not JSON, in the parser's words.
    #[error("{0}")]
    Syntax(String),
    /// The path of a key that is given twice.
    #[error("`{0}` is given twice; give it once")]
    Repeated(String),
}

/// The one value in a text.
///
/// # Errors
/// It is no JSON, or gives a key twice.
pub fn parse_json(body: &[u8]) -> Result<Value, JsonError> {
    let repeated = Cell::new(None);
    let mut parser = serde_json::Deserializer::from_slice(body);
    let node = Node { path: Path::Root, repeated: &repeated };
    let value = node.deserialize(&mut parser).and_then(|value| parser.end().map(|()| value));
    value.map_err(|error| match repeated.take() {
        Some(path) => JsonError::Repeated(path),
        None => JsonError::Syntax(error.to_string()),
    })
}

/// What kind of value it is, for people: `a string`.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Where a value stands. Made into a text only for an error.
#[derive(Clone, Copy)]
enum Path<'a> {
    Root,
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Key(Path::Root, key) => f.write_str(key),
            Path::Key(parent, key) => write!(f, "{parent}.{key}"),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Reads the value at a path. The parser bounds the depth.
#[derive(Clone, Copy)]
struct Node<'a> {
    path: Path<'a>,
    repeated: &'a Cell<Option<String>>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        loop {
            let item = Node { path: Path::Index(&self.path, out.len()), ..self };
            match items.next_element_seed(item)? {
                Some(value) => out.push(value),
                None => return Ok(Value::Array(out)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let path = Path::Key(&self.path, &key);
            if out.contains_key(&key) {
                self.repeated.set(Some(path.to_string()));
                return Err(A::Error::custom("repeated key"));
            }
            let value = entries.next_value_seed(Node { path, ..self })?;
            out.insert(key, value);
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_usual_parser() {
        for text in [
            r#"{"a":[1,-2,2.5,1e3,18446744073709551615,null,true,"x\n\u00e9"],"b":{"a":{}}}"#,
            "[]",
            "\"\\ud83d\\ude00\"",
            " 7 ",
        ] {
            let usual: Value = serde_json::from_str(text).unwrap();
            assert_eq!(parse_json(text.as_bytes()).unwrap(), usual, "{text}");
        }
        for text in ["", "{", "[1,]", "{} {}", "{\"a\":1", "nul", "1e999", "\"\\ud800\""] {
            let usual = serde_json::from_str::<Value>(text).unwrap_err().to_string();
            assert_eq!(
                parse_json(text.as_bytes()).unwrap_err(),
                JsonError::Syntax(usual),
                "{text}"
            );
        }
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert!(matches!(parse_json(deep.as_bytes()), Err(JsonError::Syntax(_))));
    }

    #[test]
    fn a_key_that_is_given_twice_is_named_by_its_path() {
        for (text, path) in [
            (r#"{"seed":1,"seed":1}"#, "seed"),
            (r#"{"a":null,"a":1}"#, "a"),
            (r#"{"a":[0,{"b":{"c":1,"d":2,"c":3}}]}"#, "a[1].b.c"),
            (r#"{"A":1,"a":{"\u0062":1,"b":2}}"#, "a.b"),
        ] {
            assert_eq!(
                parse_json(text.as_bytes()),
                Err(JsonError::Repeated(path.into())),
                "{text}"
            );
        }
        assert!(parse_json(br#"[{"a":1},{"a":2},{"A":1,"a":2}]"#).is_ok());
    }
}
