//! A schema in words that the library keeps exactly: numbers, formats and patterns.

use serde_json::{Map, Value, json};

use super::place::change_parts;
use super::{decimal, ecma, known};

/// Words whose numbers count something, and may be written with a point.
const COUNTS: [&str; 6] =
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];

/// The same schema for the library. Patterns that cannot be kept stay as they are.
pub(crate) fn for_library(schema: &Value) -> Value {
    let (mut schema, mut left) = (schema.clone(), decimal::ALL_LISTED);
    change_parts(&mut schema, &mut |part, _| {
        decimal::write_exactly(part, &mut left);
        for word in COUNTS {
            if let Some(number) = part.get(word).and_then(Value::as_f64) {
                part.insert(word.into(), json!(number as u64));
            }
        }
        names(part);
        if let Some(pattern) = part.get("pattern").and_then(Value::as_str)
            && let Ok(expressions) = ecma::expressions(pattern)
        {
            part.remove("pattern");
            expressions.iter().for_each(|one| add_pattern(part, one.search()));
        }
        let format = part.get("format").and_then(Value::as_str).and_then(known::expression);
        if let Some(expression) = format {
            part.remove("format");
            add_pattern(part, format!("^(?:{expression})$"));
        }
    });
    schema
}

/// A schema for the library, as an object with options for it.
pub(crate) fn with_options(schema: &Value, options: Value) -> Value {
    let mut schema = match for_library(schema) {
        Value::Object(schema) => schema,
        other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
    };
    schema.insert("x-guidance".into(), options);
    schema.into()
}

/// Lets texts match one more expression.
fn add_pattern(part: &mut Map<String, Value>, pattern: String) {
    if !part.contains_key("pattern") {
        part.insert("pattern".into(), pattern.into());
        return;
    }
    let all = part.entry("allOf").or_insert_with(|| json!([]));
    if let Some(all) = all.as_array_mut() {
        all.push(json!({ "pattern": pattern }));
    }
}

/// Patterns of names.
fn names(part: &mut Map<String, Value>) {
    let Some(Value::Object(patterns)) = part.get_mut("patternProperties") else { return };
    for (pattern, schema) in std::mem::take(patterns) {
        let mut translated = match ecma::expressions(&pattern).as_deref() {
            Ok([one]) => one.search(),
            _ => pattern,
        };
        // Two that mean the same stay two, which the library refuses.
        while patterns.contains_key(&translated) {
            translated = format!("(?:{translated})");
        }
        patterns.insert(translated, schema);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_and_patterns_of_a_part_are_expressions_beside_each_other() {
        let schema = json!({ "items": { "type": "string", "format": "ipv4", "pattern": "^(?=1)\\d",
            "minLength": 2.0 }, "const": { "pattern": "\\d" } });
        let written = for_library(&schema);
        assert_eq!(written["const"], schema["const"]);
        let items = &written["items"];
        assert_eq!(items["pattern"], "^(?:1)");
        assert_eq!(items["allOf"][0]["pattern"], "^[0-9]");
        assert!(items["allOf"][1]["pattern"].as_str().unwrap().starts_with("^(?:((25"));
        assert_eq!((items["minLength"].as_u64(), items.get("format")), (Some(2), None));
        let names = json!({ "patternProperties": { "^\\d": {}, "(": {}, "^[0-9]": {} } });
        let written = for_library(&names);
        let keys: Vec<_> = written["patternProperties"].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["^[0-9]", "(?:", "(?:^[0-9])"]);
    }
}
