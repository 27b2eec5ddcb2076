//! Parts of a schema by their places, and where in it the fault is.

use serde_json::{Map, Value};

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
    let here = words.filter(|(word, _)| UNSUPPORTED.contains(&word.as_str()));
    let mut found: Vec<String> = here.map(|(word, _)| format!(".{word}")).collect();
    for (step, part) in children(schema) {
        if !is_definition(&step) {
            found.extend(unsupported(part).into_iter().map(|place| format!("{step}{place}")));
        }
    }
    found
}

/// Changes all parts of a schema, the inner ones first; each comes with its place.
pub(crate) fn change_parts(
    schema: &mut Value,
    change: &mut impl FnMut(&mut Map<String, Value>, &str),
) {
    change_below(schema, "", change);
}

fn change_below(
    schema: &mut Value,
    place: &str,
    change: &mut impl FnMut(&mut Map<String, Value>, &str),
) {
    let steps: Vec<String> = children(schema).into_iter().map(|(step, _)| step).collect();
    for step in steps {
        if let Some(part) = schema.pointer_mut(&pointer_of_step(&step)) {
            change_below(part, &format!("{place}{step}"), change);
        }
    }
    if let Some(members) = schema.as_object_mut() {
        change(members, place);
    }
}

/// The part at a place.
pub(crate) fn part_mut<'a>(schema: &'a mut Value, place: &str) -> Option<&'a mut Value> {
    let pointer = pointer(schema, place)?;
    schema.pointer_mut(&pointer)
}

/// A place as a JSON pointer.
fn pointer(schema: &Value, place: &str) -> Option<String> {
    if place.is_empty() {
        return Some(String::new());
    }
    children(schema).into_iter().find_map(|(step, part)| {
        let below = pointer(part, place.strip_prefix(&step)?)?;
        Some(pointer_of_step(&step) + &below)
    })
}

/// A step such as `.properties.a` or `.anyOf[1]` as a JSON pointer.
fn pointer_of_step(step: &str) -> String {
    let step = step.strip_prefix('.').unwrap_or(step);
    let end = step.find(['.', '[']).unwrap_or(step.len());
    let (word, behind) = step.split_at(end);
    let key = match behind.strip_prefix('[') {
        Some(index) => index.strip_suffix(']').unwrap_or(index).to_owned(),
        None => behind.get(1..).unwrap_or("").replace('~', "~0").replace('/', "~1"),
    };
    if behind.is_empty() { format!("/{word}") } else { format!("/{word}/{key}") }
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_are_changed_and_found_at_their_places() {
        let mut schema = json!({
            "properties": { "a.b/c~": { "items": [{}, {}] }, "": {}, "x": true },
            "anyOf": [{ "additionalProperties": { "not": {} } }],
            "const": { "items": {} },
            "$defs": { "d": { "items": {} } },
        });
        let mut places = Vec::new();
        change_parts(&mut schema, &mut |part, place| {
            part.insert("title".into(), place.into());
            places.push(place.to_owned());
        });
        assert_eq!(places.len(), 10, "{places:?}");
        assert!(places.last().is_some_and(String::is_empty));
        for place in places {
            assert_eq!(part_mut(&mut schema, &place).unwrap()["title"], place);
        }
        assert!(part_mut(&mut schema, ".properties.x").is_none());
        assert!(part_mut(&mut schema, ".const.items").is_none());
        assert_eq!(schema["const"], json!({ "items": {} }));
    }
}
