//! Where in a schema the fault is.

use serde_json::Value;

use super::known;
use super::limits::{MOST_PARTS, Parts};

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
/// Parts that are tried, and what they may have in all: who asks for much hears of a larger part.
const TRIES: usize = 200;
const TRIED: usize = 5 * MOST_PARTS;

/// The path of the smallest part that is at fault by itself, such as `.properties.a`; empty if it is
/// the whole. References keep their targets.
pub(crate) fn fault(schema: &Value, is_faulty: impl Fn(&Value) -> bool) -> String {
    let (mut tries, mut left) = (TRIES, TRIED);
    let mut path = String::new();
    let mut part = schema;
    'deeper: loop {
        for (step, child) in children(part) {
            let child_alone = alone(schema, child);
            let cost = Parts::of(&child_alone).all;
            if tries == 0 || cost > left {
                return path;
            }
            (tries, left) = (tries - 1, left - cost);
            if is_faulty(&child_alone) {
                path.push_str(&step);
                part = child;
                continue 'deeper;
            }
        }
        return path;
    }
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
        if !is_definition(&step) {
            found.extend(unsupported(part).into_iter().map(|place| format!("{step}{place}")));
        }
    }
    found
}

/// Whether a step leads to a part that others refer to.
pub(crate) fn is_definition(step: &str) -> bool {
    DEFINITIONS.iter().any(|word| step.starts_with(word))
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
pub(crate) fn children(schema: &Value) -> Vec<(String, &Value)> {
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
