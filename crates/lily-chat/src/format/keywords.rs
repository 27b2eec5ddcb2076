//! Keywords of a schema that mean nothing, or that the library would keep only nearly and without a
//! word.

use serde_json::{Map, Value};

use super::place::change_parts;
use super::{decimal, ecma};
use crate::json::kind;
use crate::parser::schema::list;

/// Types of JSON schema.
const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];
/// The library has 64-bit floats for numbers: from here on not every whole number is one, and a
/// neighbour of a bound is not either.
const INEXACT: f64 = 9_007_199_254_740_992.0;

/// What is wrong with a keyword.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Where in the schema, such as `.properties.a.type`; empty for all of it.
    pub place: String,
    pub reason: String,
}

impl Fault {
    pub fn new(reason: impl Into<String>) -> Self {
        Self { place: String::new(), reason: reason.into() }
    }

    /// The value of a keyword is of the wrong kind.
    fn kind(expected: &str, found: &Value) -> Self {
        Self::new(format!("it should be {expected}, but it is {}", kind(found)))
    }
}

/// Most faults that are told: whoever has more begins with these.
const TOLD: usize = 64;

/// The faults of a schema, in its order.
pub(crate) fn faults(schema: &Value) -> Vec<Fault> {
    let mut reader = Reader { place: String::new(), found: Vec::new() };
    reader.schema(schema);
    reader.found
}

/// The schema without the keywords that are at fault.
pub(crate) fn without_faults(schema: &Value) -> Value {
    let mut sound = schema.clone();
    change_parts(&mut sound, &mut |part, _| {
        let whole = part.clone();
        part.retain(|word, value| keyword_fault(&whole, word, value).is_none());
        for (word, value) in part {
            let parts: Vec<&mut Value> = match (holds(word), value) {
                (Holds::Named, Value::Object(all)) => all.values_mut().collect(),
                (Holds::Listed | Holds::OneOrListed, Value::Array(all)) => all.iter_mut().collect(),
                (Holds::One | Holds::OneOrListed, one) => vec![one],
                _ => continue,
            };
            for part in parts.into_iter().filter(|part| !is_schema(part)) {
                *part = Value::Bool(true);
            }
        }
    });
    if is_schema(&sound) { sound } else { Value::Bool(true) }
}

/// The schemas that stand in the text of a grammar, behind `%json`.
pub(crate) fn schemas_in(grammar: &str) -> impl Iterator<Item = Value> {
    grammar.split(SCHEMA).skip(1).filter_map(|behind| Some(schema_at(behind)?.0))
}

/// The text of a grammar with other schemas in it.
pub(crate) fn change_schemas(grammar: &str, change: impl Fn(&Value) -> Value) -> String {
    let mut parts = grammar.split(SCHEMA);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for behind in parts {
        text.push_str(SCHEMA);
        match schema_at(behind) {
            Some((schema, end)) => {
                text.push_str(&format!(" {}{}", change(&schema), &behind[end..]))
            }
            None => text.push_str(behind),
        }
    }
    text
}

/// Stands in front of a schema in a grammar.
const SCHEMA: &str = "%json";

/// The schema at the beginning of a text, and where it ends.
fn schema_at(text: &str) -> Option<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let schema = values.next()?.ok()?;
    Some((schema, values.byte_offset()))
}

struct Reader {
    /// Where the reader is.
    place: String,
    found: Vec<Fault>,
}

impl Reader {
    /// Reads a part behind a step such as `.items`.
    fn at(&mut self, step: &str, read: impl FnOnce(&mut Self)) {
        let len = self.place.len();
        self.place.push_str(step);
        read(self);
        self.place.truncate(len);
    }

    fn note(&mut self, fault: Fault) {
        if self.found.len() < TOLD {
            self.found.push(Fault { place: format!("{}{}", self.place, fault.place), ..fault });
        }
    }

    fn schema(&mut self, schema: &Value) {
        match schema {
            Value::Object(members) => {
                for (word, value) in members {
                    self.at(&format!(".{word}"), |reader| reader.keyword(members, word, value));
                }
            }
            Value::Bool(_) => {}
            other => self.note(Fault::kind("a schema (an object, true or false)", other)),
        }
    }

    fn keyword(&mut self, schema: &Map<String, Value>, word: &str, value: &Value) {
        if let Some(fault) = keyword_fault(schema, word, value) {
            return self.note(fault);
        }
        match (holds(word), value) {
            (Holds::Named, Value::Object(all)) => {
                for (key, schema) in all {
                    self.at(&format!(".{key}"), |reader| reader.schema(schema));
                }
            }
            (Holds::Listed | Holds::OneOrListed, Value::Array(all)) => {
                for (index, schema) in all.iter().enumerate() {
                    self.at(&format!("[{index}]"), |reader| reader.schema(schema));
                }
            }
            (Holds::One | Holds::OneOrListed, schema) => self.schema(schema),
            _ => {}
        }
    }
}

/// What a keyword holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// A schema.
    One,
    /// Schemas in a row.
    Listed,
    OneOrListed,
    /// Schemas by their names.
    Named,
    Other,
}

fn holds(word: &str) -> Holds {
    match word {
        "$defs" | "definitions" | "properties" | "patternProperties" => Holds::Named,
        "items" => Holds::OneOrListed,
        "additionalItems" | "additionalProperties" | "not" => Holds::One,
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => Holds::Listed,
        _ => Holds::Other,
    }
}

/// What is wrong with a keyword, whatever is wrong with schemas in it.
fn keyword_fault(schema: &Map<String, Value>, word: &str, value: &Value) -> Option<Fault> {
    match (holds(word), value) {
        (Holds::Named, Value::Object(_)) | (Holds::Listed, Value::Array(_)) => {}
        (Holds::Named, _) => return Some(Fault::kind("an object of schemas", value)),
        (Holds::Listed, _) => return Some(Fault::kind("an array of schemas", value)),
        _ => {}
    }
    match word {
        "patternProperties" => value.as_object().and_then(|all| {
            all.keys().find_map(|name| match ecma::expressions(name) {
                Ok(all) if all.len() == 1 => None,
                Ok(_) => Some(Fault::new("it has look-ahead in a pattern of names")),
                Err(reason) => Some(Fault::new(reason)),
            })
        }),
        "type" => type_fault(value),
        "required" => match value.as_array() {
            Some(names) => names
                .iter()
                .find(|name| !name.is_string())
                .map(|other| Fault::kind("an array of names", other)),
            None => Some(Fault::kind("an array of names", value)),
        },
        "enum" => match value.as_array() {
            Some(values) if values.is_empty() => {
                Some(Fault::new("it has no values, so that nothing fits it"))
            }
            Some(_) => inexact(value),
            None => Some(Fault::kind("an array of values", value)),
        },
        "const" => inexact(value),
        "minProperties" => match count_fault(value) {
            None => doubled_keys(schema, value),
            fault => fault,
        },
        "minLength" | "maxLength" | "minItems" | "maxItems" | "maxProperties" => count_fault(value),
        "minimum" | "maximum" => bound_fault(schema, value),
        // In old drafts they are switches.
        "exclusiveMinimum" | "exclusiveMaximum" if value.is_boolean() => None,
        "exclusiveMinimum" | "exclusiveMaximum" => bound_fault(schema, value),
        "multipleOf" => match value.as_f64() {
            Some(step) if step > 0.0 && (step.fract() == 0.0 || decimal::is_kept(step)) => {
                inexact(value)
            }
            Some(step) if step > 0.0 => {
                let reason = format!("{step} cannot be kept exactly; take a step of fewer digits");
                Some(Fault::new(reason))
            }
            Some(step) => {
                Some(Fault::new(format!("it should be a number above 0, but it is {step}")))
            }
            None => Some(Fault::kind("a number above 0", value)),
        },
        "pattern" => match value.as_str() {
            Some(pattern) => ecma::expressions(pattern).err().map(Fault::new),
            None => Some(Fault::kind("a string", value)),
        },
        "format" | "$ref" if !value.is_string() => Some(Fault::kind("a string", value)),
        "nullable" | "uniqueItems" if !value.is_boolean() => {
            Some(Fault::kind("true or false", value))
        }
        _ => None,
    }
}

fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

fn type_fault(value: &Value) -> Option<Fault> {
    let expected = || format!("one of {}, or an array of those", TYPES.join(", "));
    let one = |name: &Value| match name {
        Value::String(name) if TYPES.contains(&name.as_str()) => None,
        Value::String(other) => {
            Some(Fault::new(format!("it should be {}, but it is `{other}`", expected())))
        }
        other => Some(Fault::kind(&expected(), other)),
    };
    match value {
        Value::Array(names) if names.is_empty() => {
            Some(Fault::new("it has no types, so that nothing fits it"))
        }
        Value::Array(names) => names.iter().find_map(one),
        name => one(name),
    }
}

fn count_fault(value: &Value) -> Option<Fault> {
    let expected = "a whole number from 0 on";
    match value.as_f64() {
        Some(number) if number < 0.0 || number.fract() != 0.0 => {
            Some(Fault::new(format!("it should be {expected}, but it is {value}")))
        }
        Some(_) => inexact(value),
        None => Some(Fault::kind(expected, value)),
    }
}

fn bound_fault(schema: &Map<String, Value>, value: &Value) -> Option<Fault> {
    match value {
        // Whoever reads such a number has rounded it already, if it is not for whole numbers alone.
        Value::Number(number) if number.is_f64() && is_only(schema, "number") => None,
        Value::Number(_) => inexact(value),
        other => Some(Fault::kind("a number", other)),
    }
}

fn is_only(schema: &Map<String, Value>, name: &str) -> bool {
    schema.get("type").is_some_and(|found| found == name)
}

/// A whole number inside of a value that the library would round.
fn inexact(value: &Value) -> Option<Fault> {
    let under = |step: String| {
        move |fault: Fault| Fault { place: format!("{step}{}", fault.place), ..fault }
    };
    match value {
        Value::Number(number) => {
            let float = number.as_f64().unwrap_or(f64::INFINITY);
            let is_rounded = float.fract() == 0.0 && float.abs() >= INEXACT;
            is_rounded.then(|| {
                Fault::new(format!(
                    "{number} is a whole number beyond 9007199254740991 (2^53 - 1), which would be \
                     rounded; give a smaller one, or let the value be a string"
                ))
            })
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| inexact(item).map(under(format!("[{index}]")))),
        Value::Object(members) => {
            members.iter().find_map(|(key, member)| inexact(member).map(under(format!(".{key}"))))
        }
        _ => None,
    }
}

/// The library counts a key that is written twice as two, where keys are free. For one key more than
/// are required that makes no difference: the first one has another name than those.
fn doubled_keys(schema: &Map<String, Value>, least: &Value) -> Option<Fault> {
    let least = least.as_f64()? as u64;
    let has_patterns = schema
        .get("patternProperties")
        .and_then(Value::as_object)
        .is_some_and(|all| !all.is_empty());
    let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    if is_closed && !has_patterns {
        return None;
    }
    let members = list(schema, "allOf").filter_map(Value::as_object);
    let required = std::iter::once(schema).chain(members).flat_map(|one| list(one, "required"));
    let mut names: Vec<&str> = required.filter_map(Value::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let most = names.len() as u64 + 1;
    (least > most).then(|| {
        Fault::new(format!(
            "it is {least}, but with names that the schema leaves open at most {most} is supported, one \
             more than `required` has; name the properties there, or ask for fewer"
        ))
    })
}

/// What the library does not know of a schema, from its own words.
pub fn unsupported(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("Unimplemented keys: [")?;
    let keys = rest.split_once(']').map_or(rest, |(keys, _)| keys);
    let (noun, verb) = if keys.contains(", ") { ("keys", "are") } else { ("key", "is") };
    Some(format!("the {noun} {keys} {verb} not supported"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn place(schema: &Value) -> String {
        let found = faults(schema);
        assert_eq!(found.len(), 1, "{schema}: {found:?}");
        assert!(!found[0].reason.is_empty());
        found[0].place.clone()
    }

    #[test]
    fn a_keyword_of_the_wrong_kind_is_a_fault_at_its_place() {
        for (schema, at) in [
            (json!(5), ""),
            (json!({ "properties": { "a": "string" } }), ".properties.a"),
            (json!({ "properties": [] }), ".properties"),
            (json!({ "properties": { "a": { "type": "strin" } } }), ".properties.a.type"),
            (json!({ "type": ["null", 1] }), ".type"),
            (json!({ "type": [] }), ".type"),
            (json!({ "required": "a" }), ".required"),
            (json!({ "required": ["a", 1] }), ".required"),
            (json!({ "enum": {} }), ".enum"),
            (json!({ "enum": [] }), ".enum"),
            (json!({ "items": { "minLength": "3" } }), ".items.minLength"),
            (json!({ "items": [{}, 1] }), ".items[1]"),
            (json!({ "minItems": -1 }), ".minItems"),
            (json!({ "maxItems": 1.5 }), ".maxItems"),
            (json!({ "minimum": "0" }), ".minimum"),
            (json!({ "exclusiveMaximum": [] }), ".exclusiveMaximum"),
            (json!({ "multipleOf": 0 }), ".multipleOf"),
            (json!({ "multipleOf": 0.53 }), ".multipleOf"),
            (json!({ "pattern": 5 }), ".pattern"),
            (json!({ "pattern": "a\\" }), ".pattern"),
            (json!({ "pattern": "a(?=b)" }), ".pattern"),
            (json!({ "patternProperties": { "^(?=a)b": {} } }), ".patternProperties"),
            (json!({ "patternProperties": { "a\\": {} } }), ".patternProperties"),
            (json!({ "format": {} }), ".format"),
            (json!({ "$ref": {} }), ".$ref"),
            (json!({ "anyOf": {} }), ".anyOf"),
            (json!({ "oneOf": [{}, null] }), ".oneOf[1]"),
            (json!({ "additionalProperties": "no" }), ".additionalProperties"),
            (json!({ "$defs": { "x": { "uniqueItems": 1 } } }), ".$defs.x.uniqueItems"),
        ] {
            assert_eq!(place(&schema), at, "{schema}");
            assert_eq!(faults(&without_faults(&schema)), [], "{schema}");
        }
        let both = json!({ "properties": { "a": 1, "b": 2 } });
        assert_eq!(faults(&both).len(), 2);
        let sound = json!({ "type": ["object", "null"], "title": 5, "x-new": 1, "required": [],
            "properties": { "type": { "const": "type" }, "b": true, "c": { "exclusiveMinimum": true,
                "minimum": 0.5, "minLength": 2.0, "enum": [null, { "a": [1] }] } },
            "additionalProperties": false, "items": {}, "minItems": 0 });
        assert_eq!(faults(&sound), []);
        assert_eq!(without_faults(&sound), sound);
        let mixed =
            json!({ "type": "array", "minItems": -1, "items": { "anyOf": [5, { "type": 1 }] } });
        let left = json!({ "type": "array", "items": { "anyOf": [true, {}] } });
        assert_eq!(without_faults(&mixed), left);
    }

    #[test]
    fn whole_numbers_that_would_be_rounded_are_faults_that_name_them() {
        let large = 9_007_199_254_740_993_u64;
        for (schema, at) in [
            (json!({ "const": large }), ".const"),
            (json!({ "const": { "a": [0, large] } }), ".const.a[1]"),
            (json!({ "enum": [1, large] }), ".enum[1]"),
            (json!({ "type": "integer", "minimum": large }), ".minimum"),
            (json!({ "type": "integer", "maximum": i64::MAX }), ".maximum"),
            (json!({ "type": "number", "maximum": u64::MAX }), ".maximum"),
            (json!({ "exclusiveMinimum": i64::MIN }), ".exclusiveMinimum"),
            (json!({ "type": "integer", "exclusiveMaximum": 1e30 }), ".exclusiveMaximum"),
            (json!({ "const": 1e30 }), ".const"),
            (json!({ "items": { "multipleOf": large } }), ".items.multipleOf"),
        ] {
            assert_eq!(place(&schema), at, "{schema}");
        }
        let reason = &faults(&json!({ "enum": [large] }))[0].reason;
        assert!(reason.contains("9007199254740993 "), "{reason}");
        for exact in [
            json!({ "const": 9_007_199_254_740_991_u64 }),
            json!({ "minimum": -9_007_199_254_740_991_i64 }),
            json!({ "enum": ["9007199254740993", 0.5, 1e-300] }),
            json!({ "type": "number", "maximum": 1.5e308 }),
            json!({ "default": large, "examples": [large], "description": "x" }),
        ] {
            assert_eq!(faults(&exact), [], "{exact}");
        }
    }

    #[test]
    fn schemas_of_a_grammar_are_read_too() {
        let grammar = "start: a b\na: %json {\"const\": 1}\nb: %json\n{ \"type\": \"null\" } \"x\"";
        let found: Vec<Value> = schemas_in(grammar).collect();
        assert_eq!(found, [json!({ "const": 1 }), json!({ "type": "null" })]);
        let changed = change_schemas(grammar, |schema| json!([schema]));
        let expected = "start: a b\na: %json [{\"const\":1}]\nb: %json [{\"type\":\"null\"}] \"x\"";
        assert_eq!(changed, expected);
    }

    #[test]
    fn keys_that_may_be_doubled_are_not_counted() {
        for (schema, is_kept) in [
            (json!({ "minProperties": 1 }), true),
            (json!({ "minProperties": 2 }), false),
            (json!({ "minProperties": 2, "required": ["a"] }), true),
            (json!({ "minProperties": 3, "required": ["a", "a"] }), false),
            (
                json!({ "minProperties": 3, "required": ["a"], "allOf": [{ "required": ["b"] }] }),
                true,
            ),
            (json!({ "minProperties": 2, "additionalProperties": false }), true),
            (json!({ "minProperties": 2, "additionalProperties": {} }), false),
            (
                json!({ "minProperties": 2, "additionalProperties": false,
                    "patternProperties": { "^x": {} } }),
                false,
            ),
        ] {
            let found = faults(&schema);
            assert_eq!(found.is_empty(), is_kept, "{schema}");
            assert!(found.iter().all(|fault| fault.place == ".minProperties"));
        }
    }
}
