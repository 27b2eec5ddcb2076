//! A schema without words that say nothing, and without those that are only told.

use serde_json::{Map, Value, json};

use super::known;
use super::limits::{MOST_PARTS, Parts};
use super::place::change_parts;
use super::words::{Word, subject};
use crate::parser::schema::target;

/// A schema as lily reads it.
pub(crate) struct Plain {
    pub schema: Value,
    /// Places of words that are not kept: formats that nobody knows, which the standard takes for notes,
    /// and `uniqueItems`, whose doubles a reader can drop. Nothing is refused for them.
    pub told: Vec<String>,
}

/// Leaves out of a schema what does not bind its values.
pub(crate) fn plain(schema: &Value) -> Plain {
    let (mut plain, mut told, mut left) = (schema.clone(), Vec::new(), MOST_PARTS);
    change_parts(&mut plain, &mut |part, place| {
        told.extend(note(part, "format").map(|word| format!("{place}.{word}")));
        told.extend(note(part, "uniqueItems").map(|word| format!("{place}.{word}")));
        let whole = part.clone();
        part.retain(|word, _| !is_empty(&whole, word));
        names(schema, part, &mut left);
    });
    Plain { schema: plain, told }
}

/// Takes a word away that is told instead of kept. A format of values that are no texts says nothing.
fn note(part: &mut Map<String, Value>, word: &'static str) -> Option<&'static str> {
    let is_note = match (word, part.get(word)?) {
        ("format", Value::String(name)) => known::expression(name).is_none(),
        ("uniqueItems", value) => *value == true,
        _ => false,
    };
    if !is_note {
        return None;
    }
    part.remove(word);
    let may_be_text = match part.get("type") {
        Some(Value::String(name)) => name == "string",
        Some(Value::Array(names)) => names.iter().any(|name| name == "string"),
        _ => true,
    };
    (word != "format" || may_be_text).then_some(word)
}

/// Whether a word allows everything where it stands.
fn is_empty(part: &Map<String, Value>, word: &str) -> bool {
    match word {
        "then" | "else" => !part.contains_key("if"),
        "minContains" | "maxContains" => !part.contains_key("contains"),
        "uniqueItems" => part[word] == false,
        "unevaluatedItems" | "unevaluatedProperties" => part[word] == true,
        "propertyNames" => match &part[word] {
            Value::Object(names) => !names.iter().any(|(word, value)| is_telling(word, value)),
            names => *names == true,
        },
        _ => false,
    }
}

/// Whether a word says something about a name.
fn is_telling(word: &str, value: &Value) -> bool {
    match word {
        "type" => value != "string",
        word => subject(word) != Word::Silent,
    }
}

/// Says `propertyNames` in other words, where it has a list of names or a pattern alone and nothing else
/// speaks of names. Each name brings a copy of the schema of its value, so many parts at most are `left`.
fn names(root: &Value, part: &mut Map<String, Value>, left: &mut usize) {
    let others = ["properties", "patternProperties"];
    let Some(Value::Object(names)) = part.get("propertyNames") else { return };
    if others.iter().any(|word| part.contains_key(*word)) {
        return;
    }
    let names = match target(root, names) {
        Some((_, Value::Object(names))) => names,
        _ => names,
    };
    let value = part.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    let telling = names.iter().filter(|(word, value)| is_telling(word, value));
    let (word, all) = match telling.collect::<Vec<_>>()[..] {
        [(word, Value::Array(all))] if word == "enum" => {
            let parts = all.len().saturating_mul(1 + Parts::of(&value).all);
            let Some(rest) = left.checked_sub(parts) else { return };
            *left = rest;
            let all = all.iter().filter_map(Value::as_str);
            let named = all.map(|name| (name.to_owned(), value.clone()));
            ("properties", named.collect::<Map<_, _>>())
        }
        [(word, Value::String(pattern))] if word == "pattern" => {
            ("patternProperties", Map::from_iter([(pattern.clone(), value)]))
        }
        _ => return,
    };
    part.remove("propertyNames");
    part.insert(word.into(), all.into());
    part.insert("additionalProperties".into(), json!(false));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_say_nothing_are_left_out() {
        for (schema, left) in [
            (json!({ "type": "array", "uniqueItems": false }), json!({ "type": "array" })),
            (json!({ "propertyNames": { "type": "string", "title": "x" } }), json!({})),
            (json!({ "propertyNames": true, "unevaluatedProperties": true }), json!({})),
            (json!({ "then": {}, "else": { "not": {} }, "maxContains": 1 }), json!({})),
            (json!({ "if": {}, "then": {} }), json!({ "if": {}, "then": {} })),
            (json!({ "type": "integer", "format": "int32" }), json!({ "type": "integer" })),
            (
                json!({ "const": { "uniqueItems": false } }),
                json!({ "const": { "uniqueItems": false } }),
            ),
        ] {
            let found = plain(&schema);
            assert_eq!((found.schema, found.told), (left, Vec::new()), "{schema}");
        }
    }

    #[test]
    fn unknown_formats_and_unique_items_are_told() {
        let schema = json!({ "properties": { "a": { "type": "array", "uniqueItems": true,
            "items": { "type": ["string", "null"], "format": "iri" } }, "b": { "format": "date" } } });
        let found = plain(&schema);
        assert_eq!(found.told, [".properties.a.items.format", ".properties.a.uniqueItems"]);
        let items = json!({ "type": ["string", "null"] });
        let a = json!({ "type": "array", "items": items });
        assert_eq!(found.schema, json!({ "properties": { "a": a, "b": { "format": "date" } } }));
    }

    #[test]
    fn listed_names_are_properties_and_a_pattern_of_names_is_one() {
        let number = json!({ "type": "number" });
        for (names, word, value) in [
            (json!({ "enum": ["x", "y"] }), "properties", json!({ "x": number, "y": number })),
            (json!({ "$ref": "#/$defs/n" }), "properties", json!({ "z": number })),
            (
                json!({ "type": "string", "pattern": "^a" }),
                "patternProperties",
                json!({ "^a": number }),
            ),
        ] {
            let schema = json!({ "propertyNames": names, "additionalProperties": number,
                "$defs": { "n": { "enum": ["z"] } } });
            let found = plain(&schema).schema;
            assert_eq!((&found[word], &found["additionalProperties"]), (&value, &json!(false)));
            assert!(found.get("propertyNames").is_none());
        }
        let large = json!({ "propertyNames": { "enum": vec!["x"; 200] },
            "additionalProperties": { "enum": vec![1; 50] } });
        assert_eq!(plain(&large).schema, large);
        let beside = json!({ "propertyNames": { "enum": ["x"] }, "properties": {} });
        assert_eq!(plain(&beside).schema, beside);
    }
}
