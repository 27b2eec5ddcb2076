//! What a tool's schema says about the values of a call.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::pattern;
use crate::parser::schema::Types;

/// Subschemas that are looked at for one tool: a bound for references that multiply.
const BUDGET: usize = 4096;
/// Most values that are listed one by one.
const MOST_LISTED: usize = 1024;
/// Where a schema keeps itself when one of its parts stands alone.
const ROOT: &str = "lily";

/// Parameters of a tool.
#[derive(Debug, PartialEq)]
pub(crate) enum Parameters {
    /// The schema names none, and allows any.
    Free(ValueRule),
    /// In the order of the schema.
    Named(Vec<Parameter>),
}

/// A parameter that the schema names.
#[derive(Debug, PartialEq)]
pub(crate) struct Parameter {
    pub key: String,
    pub required: bool,
    pub rule: ValueRule,
}

/// What a value may be.
#[derive(Debug, PartialEq)]
pub(crate) enum ValueRule {
    /// Text, printed as it is, that matches all of these patterns.
    Text(Vec<String>),
    /// One of these, as they are printed.
    Listed(Vec<String>),
    /// JSON of a schema.
    Json(Value),
}

impl Parameters {
    /// Parameters by the schema of a tool, null if it has none.
    pub fn of(schema: &Value) -> Self {
        let mut reader = Reader { root: schema, budget: BUDGET };
        let mut all: Vec<(&String, &Value)> = Vec::new();
        let mut required = HashSet::new();
        reader.collect(schema, &mut all, &mut required, &mut Vec::new());
        if all.is_empty() {
            let other = schema.get("additionalProperties");
            return match other {
                _ if schema.is_null() => Self::Named(Vec::new()),
                Some(Value::Bool(false)) => Self::Named(Vec::new()),
                Some(other @ Value::Object(_)) => Self::Free(reader.rule(other, other)),
                _ => Self::Free(ValueRule::Text(Vec::new())),
            };
        }
        let mut seen = HashSet::new();
        all.retain(|(key, _)| seen.insert(*key));
        let named = all.into_iter().map(|(key, value)| Parameter {
            key: key.clone(),
            required: required.contains(key.as_str()),
            rule: reader.argument(key, value),
        });
        Self::Named(named.collect())
    }
}

struct Reader<'a> {
    root: &'a Value,
    budget: usize,
}

impl<'a> Reader<'a> {
    /// Properties of an object schema and of what it is made of.
    fn collect(
        &mut self,
        schema: &'a Value,
        all: &mut Vec<(&'a String, &'a Value)>,
        required: &mut HashSet<&'a str>,
        followed: &mut Vec<&'a str>,
    ) {
        let Some(schema) = self.enter(schema) else { return };
        let properties = schema.get("properties").and_then(Value::as_object);
        all.extend(properties.into_iter().flatten());
        required.extend(texts(schema, "required"));
        if let Some((pointer, target)) = self.target(schema)
            && !followed.contains(&pointer)
        {
            followed.push(pointer);
            self.collect(target, all, required, followed);
            followed.pop();
        }
        for member in list(schema, "allOf") {
            self.collect(member, all, required, followed);
        }
        // One of these holds, and nobody knows which: nothing in them is required.
        for word in ["anyOf", "oneOf"] {
            for member in list(schema, word) {
                self.collect(member, all, &mut HashSet::new(), followed);
            }
        }
    }

    fn argument(&mut self, key: &str, schema: &'a Value) -> ValueRule {
        match Types::of_argument(self.root, key) {
            types if types == Types::STRING => self.text(schema),
            types => self.typed(types, schema),
        }
    }

    /// The rule of a value that has no name.
    fn rule(&mut self, schema: &'a Value, additional: &'a Value) -> ValueRule {
        // What the parser makes of a name that nobody has thought of.
        let types = Types::of_argument(&json!({ "additionalProperties": additional }), "");
        if types == Types::STRING { self.text(schema) } else { self.typed(types, schema) }
    }

    fn typed(&mut self, types: Types, schema: &'a Value) -> ValueRule {
        if !types.has(Types::STRING) {
            return ValueRule::Json(self.alone(schema));
        }
        // Text may be anything, so only a list of values says more.
        match self.listed(schema, &mut Vec::new()) {
            Some(listed) => ValueRule::Listed(listed),
            None => ValueRule::Text(Vec::new()),
        }
    }

    fn text(&mut self, schema: &'a Value) -> ValueRule {
        if let Some(listed) = self.listed(schema, &mut Vec::new()) {
            return ValueRule::Listed(listed);
        }
        let schema = self.resolved(schema);
        let length = |word: &str| schema.get(word).and_then(Value::as_u64);
        let (least, most) = (length("minLength"), length("maxLength"));
        let pattern = schema.get("pattern").and_then(Value::as_str).and_then(pattern::whole);
        let lengths = (least.unwrap_or(0) > 0 || most.is_some()).then(|| {
            let most = most.map_or(String::new(), |most| most.to_string());
            format!("(?s:.{{{},{most}}})", least.unwrap_or(0))
        });
        ValueRule::Text(pattern.into_iter().chain(lengths).collect())
    }

    /// All values, if the schema lists them: as they are printed.
    fn listed(&mut self, schema: &'a Value, followed: &mut Vec<&'a str>) -> Option<Vec<String>> {
        let schema = self.enter(schema)?;
        let printed = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let mut found: Vec<String> = Vec::new();
        if let Some(value) = schema.get("const") {
            found.push(printed(value));
        } else if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            found.extend(values.iter().map(printed));
        } else if schema.get("type").and_then(Value::as_str) == Some("null") {
            found.push("null".into());
        } else if let Some((pointer, target)) = self.target(schema) {
            if followed.contains(&pointer) {
                return None;
            }
            followed.push(pointer);
            let listed = self.listed(target, followed);
            followed.pop();
            found.extend(listed?);
        } else {
            let members = ["anyOf", "oneOf"].into_iter().find_map(|word| schema.get(word));
            for member in members?.as_array()? {
                found.extend(self.listed(member, followed)?);
            }
        }
        if schema.get("nullable") == Some(&Value::Bool(true)) {
            found.push("null".into());
        }
        let has_tag = |text: &String| text.contains("</parameter") || text.contains("tool_call>");
        let fits = !found.is_empty() && found.len() <= MOST_LISTED && !found.iter().any(has_tag);
        fits.then_some(found)
    }

    /// What a reference leads to.
    fn resolved(&self, schema: &'a Value) -> &'a Value {
        let target = schema.as_object().and_then(|schema| self.target(schema));
        target.map_or(schema, |(_, target)| target)
    }

    fn target(&self, schema: &'a Map<String, Value>) -> Option<(&'a str, &'a Value)> {
        let pointer = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
        Some((pointer, self.root.pointer(pointer)?))
    }

    fn enter(&mut self, schema: &'a Value) -> Option<&'a Map<String, Value>> {
        self.budget = self.budget.checked_sub(1)?;
        schema.as_object()
    }

    /// A part that means the same without the rest.
    fn alone(&self, schema: &Value) -> Value {
        let mut part = moved(schema);
        if schema.to_string().contains("\"$ref\"")
            && let Some(part) = part.as_object_mut()
        {
            let mut root = moved(self.root);
            if let Some(root) = root.as_object_mut() {
                ["$id", "id", "$schema"].iter().for_each(|word| drop(root.remove(*word)));
            }
            part.insert("$defs".into(), json!({ ROOT: root }));
        }
        part
    }
}

/// A schema whose references lead to where [`Reader::alone`] keeps the root.
fn moved(schema: &Value) -> Value {
    match schema {
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| match (key.as_str(), value) {
                ("$ref", Value::String(target)) if target.starts_with('#') => {
                    (key.clone(), format!("#/$defs/{ROOT}{}", &target[1..]).into())
                }
                _ => (key.clone(), moved(value)),
            };
            Value::Object(members.iter().map(member).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(moved).collect()),
        other => other.clone(),
    }
}

fn list<'a>(schema: &'a Map<String, Value>, word: &str) -> impl Iterator<Item = &'a Value> {
    schema.get(word).and_then(Value::as_array).into_iter().flatten()
}

fn texts<'a>(schema: &'a Map<String, Value>, word: &str) -> impl Iterator<Item = &'a str> {
    list(schema, word).filter_map(Value::as_str)
}
