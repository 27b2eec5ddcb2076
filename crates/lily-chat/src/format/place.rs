//! Where in a schema the fault is.

use serde_json::Value;

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
