//! Where in a schema the fault is.

use serde_json::Value;

use super::known;
use super::pattern::ends_escaped;

/// Keywords that say something about values, and of which the library makes nothing.
const UNSUPPORTED: [&str; 14] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];
/// Steps to parts that others refer to.
const DEFINITIONS: [&str; 2] = [".$defs.", ".definitions."];
/// Parts that are tried.
const TRIES: usize = 200;

/// The path of the smallest part that is at fault by itself, such as `.properties.a`; empty if it is
/// the whole. References keep their targets.
pub(crate) fn fault(schema: &Value, is_faulty: impl Fn(&Value) -> bool) -> String {
    let mut tries = TRIES;
    let mut path = String::new();
    let mut part = schema;
    'deeper: loop {
        for (step, child) in children(part) {
            if tries == 0 {
                return path;
            }
            tries -= 1;
            if is_faulty(&alone(schema, child)) {
                path.push_str(&step);
                part = child;
                continue 'deeper;
            }
        }
        return path;
    }
}

/// The path of a pattern that ends in the middle of an escape, which the library would complete.
pub(crate) fn cut_pattern(schema: &Value) -> Option<String> {
    let members = schema.as_object()?;
    let is_cut = |pattern: &str| ends_escaped(pattern);
    if members.get("pattern").and_then(Value::as_str).is_some_and(is_cut) {
        return Some(".pattern".into());
    }
    let named = members.get("patternProperties").and_then(Value::as_object);
    if named.is_some_and(|named| named.keys().any(|pattern| is_cut(pattern))) {
        return Some(".patternProperties".into());
    }
    let inside = |(step, part)| Some(format!("{step}{}", cut_pattern(part)?));
    children(schema).into_iter().find_map(inside)
}

/// Paths of keywords that the library does not support, in a schema without its definitions.
pub(crate) fn unsupported(schema: &Value) -> Vec<String> {
    let words = schema.as_object().into_iter().flatten();
    let is_silent = |word: &str, value: &Value| match word {
        "format" => value.as_str().is_some_and(|name| known::expression(name).is_some()),
        word => !UNSUPPORTED.contains(&word),
    };
    let here = words.filter(|(word, value)| !is_silent(word, value));
    let mut found: Vec<String> = here.map(|(word, _)| format!(".{word}")).collect();
    for (step, part) in children(schema) {
        if !DEFINITIONS.iter().any(|word| step.starts_with(word)) {
            found.extend(unsupported(part).into_iter().map(|place| format!("{step}{place}")));
        }
    }
    found
}

/// A part with the definitions of the whole.
fn alone(schema: &Value, part: &Value) -> Value {
    let mut part = part.clone();
    if let Some(members) = part.as_object_mut() {
        for word in ["$defs", "definitions", "$schema"] {
            if let Some(definitions) = schema.get(word) {
                members.entry(word).or_insert_with(|| definitions.clone());
            }
        }
    }
    part
}

/// Subschemas with their steps.
fn children(schema: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for (word, value) in schema.as_object().into_iter().flatten() {
        match (word.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(all)) => {
                found.extend(all.iter().map(|(key, part)| (format!(".{word}.{key}"), part)));
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(all)) => {
                let step = |(i, part)| (format!(".{word}[{i}]"), part);
                found.extend(all.iter().enumerate().map(step));
            }
            ("items" | "additionalProperties" | "additionalItems" | "not", part) => {
                found.push((format!(".{word}"), part));
            }
            _ => {}
        }
    }
    found.retain(|(_, part)| part.is_object());
    found
}
