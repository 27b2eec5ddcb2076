//! What a tool's schema says about the values of a call, and what of it a call does not keep.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::ends;
use super::strings::Strings;
use super::words::{Word, subject};
use crate::parser::schema::{Types, list, target};

/// Subschemas that are looked at for one tool: a bound for references that multiply.
const BUDGET: usize = 4096;
/// Where a schema keeps itself when one of its parts stands alone.
pub(crate) const ROOT: &str = "lily";

/// Bytes of schemas that stand alone with all that they may refer to.
const COPIED: usize = 8 << 20;
/// Why a call gives no value.
pub(crate) const UNWRITABLE: &str = "no value of it can be written in a call";

/// Why a call gives no value.
const FORBIDDEN: &str = "`additionalProperties` false stands beside the `allOf` or `$ref` that names it, and forbids it";

/// Where the rule of names stands that nobody has thought of.
pub(crate) const FREE: &str = ".additionalProperties";

/// What a schema says about the parameters of a tool.
#[derive(Debug, PartialEq)]
pub(crate) struct Parameters {
    pub rules: Rules,
    /// Keywords that a call does not keep, by their places, such as `.properties.a.not`.
    pub unkept: Vec<String>,
}

/// Parameters of a tool.
#[derive(Debug, PartialEq)]
pub(crate) enum Rules {
    /// The schema names none, and allows any.
    Free(ValueRule),
    /// In the order of the schema.
    Named(Vec<Parameter>),
}

/// A parameter that the schema names.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameter {
    pub key: String,
    /// Where the schema speaks of it.
    pub place: String,
    pub required: bool,
    pub rule: ValueRule,
}

/// What a value may be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ValueRule {
    /// Text, printed as it is, that matches all of these patterns.
    Text {
        patterns: Vec<String>,
        /// A schema of the values of other types, if there are any.
        others: Option<Value>,
    },
    /// One of these, as they are printed.
    Listed(Vec<String>),
    /// JSON of a schema.
    Json {
        schema: Value,
        /// Keywords that are not supported are left out.
        lenient: bool,
    },
    /// There is no value that a call could give, for this reason.
    Never(&'static str),
}

/// A property and what leads to it.
struct Property<'a> {
    key: &'a String,
    schema: &'a Value,
    place: String,
}

impl Parameters {
    /// Parameters by the schema of a tool, null if it has none.
    pub fn of(schema: &Value) -> Self {
        let mut reader = Reader {
            root: schema,
            strings: Strings::new(schema, BUDGET),
            copied: 0,
            cuts: ends::MOST_CUT,
        };
        let mut found = Found::default();
        reader.collect(schema, "", &mut found, &mut Vec::new());
        let rules = match found.properties.is_empty() {
            true => reader.free(schema, &found),
            false => reader.named(&found),
        };
        Self { rules, unkept: reader.strings.unkept }
    }
}

impl Parameters {
    /// One parameter, which is required, with a rule.
    pub fn one(rule: ValueRule) -> Self {
        let one = Parameter { key: "a".into(), place: String::new(), required: true, rule };
        Self { rules: Rules::Named(vec![one]), unkept: Vec::new() }
    }

    /// Rules of values with their places.
    pub fn values(&self) -> impl Iterator<Item = (&str, &ValueRule)> {
        let (free, named) = match &self.rules {
            Rules::Free(rule) => (Some(rule), None),
            Rules::Named(named) => (None, Some(named)),
        };
        let named = named.into_iter().flatten().map(|one| (one.place.as_str(), &one.rule));
        free.map(|rule| (FREE, rule)).into_iter().chain(named)
    }

    /// The same, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = (&str, &mut ValueRule)> {
        let (free, named) = match &mut self.rules {
            Rules::Free(rule) => (Some(rule), None),
            Rules::Named(named) => (None, Some(named)),
        };
        let named = named.into_iter().flatten().map(|one| (one.place.as_str(), &mut one.rule));
        free.map(|rule| (FREE, rule)).into_iter().chain(named)
    }
}

/// What an object schema is made of.
#[derive(Default)]
struct Found<'a> {
    properties: Vec<Property<'a>>,
    required: HashSet<&'a str>,
    /// Names that each part which allows no others has, patterns of names aside.
    closed: Vec<HashSet<&'a str>>,
    /// Bounds on the number of properties, with their places.
    at_least: Vec<(u64, String)>,
    at_most: Vec<(u64, String)>,
}

struct Reader<'a> {
    root: &'a Value,
    strings: Strings<'a>,
    /// Bytes of parts that stand alone.
    copied: usize,
    /// Endless parts that may still be cut off.
    cuts: usize,
}

impl<'a> Reader<'a> {
    /// Properties of an object schema and of what it is made of; notes what is not kept.
    fn collect(
        &mut self,
        schema: &'a Value,
        place: &str,
        found: &mut Found<'a>,
        followed: &mut Vec<&'a str>,
    ) {
        let Some(schema) = self.strings.enter(schema) else { return };
        for (word, value) in schema {
            let here = format!("{place}.{word}");
            let is_kept = match word.as_str() {
                "properties" => {
                    let all = value.as_object().into_iter().flatten();
                    found.properties.extend(all.map(|(key, schema)| Property {
                        key,
                        schema,
                        place: format!("{here}.{key}"),
                    }));
                    true
                }
                "required" => {
                    found.required.extend(list(schema, word).filter_map(Value::as_str));
                    true
                }
                "type" => value == "object" || list(schema, word).any(|name| name == "object"),
                "minProperties" => {
                    found.at_least.extend(value.as_u64().map(|number| (number, here.clone())));
                    value.is_u64()
                }
                "maxProperties" => {
                    found.at_most.extend(value.as_u64().map(|number| (number, here.clone())));
                    value.is_u64()
                }
                // A call has the parameters of the schema and no others. What stands beside the word in
                // `allOf` and behind references is another schema's.
                "additionalProperties" => {
                    if *value == false && !schema.contains_key("patternProperties") {
                        let own = schema.get("properties").and_then(Value::as_object);
                        found.closed.push(
                            own.into_iter().flat_map(Map::keys).map(String::as_str).collect(),
                        );
                    }
                    true
                }
                "unevaluatedProperties" => true,
                "allOf" => {
                    for (index, member) in list(schema, word).enumerate() {
                        self.collect(member, &format!("{here}[{index}]"), found, followed);
                    }
                    true
                }
                // One of these holds, and nobody knows which: nothing in them is required.
                "anyOf" | "oneOf" => {
                    let mut optional = Found::default();
                    for (index, member) in list(schema, word).enumerate() {
                        let place = format!("{here}[{index}]");
                        self.collect(member, &place, &mut optional, followed);
                    }
                    found.properties.append(&mut optional.properties);
                    false
                }
                "$ref" => match target(self.root, schema) {
                    Some((pointer, target)) if !followed.contains(&pointer) => {
                        followed.push(pointer);
                        self.collect(target, &pointer.replace('/', "."), found, followed);
                        followed.pop();
                        true
                    }
                    Some(_) => true,
                    None => false,
                },
                word => !matches!(subject(word), Word::Objects | Word::Any),
            };
            if !is_kept {
                self.strings.unkept.push(here);
            }
        }
    }

    /// Any names, with values that the schema has for those that nobody has thought of.
    fn free(&mut self, schema: &'a Value, found: &Found<'a>) -> Rules {
        self.unkept(found.at_least.iter().filter(|(number, _)| *number > 0));
        let other = schema.get("additionalProperties");
        let rule = match other {
            _ if schema.is_null() || !found.closed.is_empty() => return Rules::Named(Vec::new()),
            // What the parser makes of such a name.
            Some(other @ Value::Object(_)) => {
                self.rule(Types::of_argument(self.root, ""), other, FREE)
            }
            _ => ValueRule::Text { patterns: Vec::new(), others: None },
        };
        self.unkept(found.at_most.iter());
        if !found.required.is_empty() {
            self.strings.unkept.push(".required".into());
        }
        Rules::Free(rule)
    }

    fn named(&mut self, found: &Found<'a>) -> Rules {
        let mut first: HashMap<&str, &Value> = HashMap::new();
        let mut named = Vec::new();
        for Property { key, schema, place } in &found.properties {
            match first.get(key.as_str()) {
                None => drop(first.insert(key, schema)),
                // The first of them is kept.
                Some(earlier) => {
                    if earlier != schema {
                        self.strings.unkept.push(place.clone());
                    }
                    continue;
                }
            }
            let is_forbidden = found.closed.iter().any(|names| !names.contains(key.as_str()));
            let rule = match schema {
                Value::Bool(false) => ValueRule::Never("it allows no value"),
                _ if is_forbidden => ValueRule::Never(FORBIDDEN),
                schema => self.rule(Types::of_argument(self.root, key), schema, place),
            };
            let required = found.required.contains(key.as_str());
            named.push(Parameter { key: (*key).clone(), place: place.clone(), required, rule });
        }
        let sure = named.iter().filter(|parameter| parameter.required).count() as u64;
        self.unkept(found.at_least.iter().filter(|(number, _)| *number > sure));
        self.unkept(found.at_most.iter().filter(|(number, _)| *number < named.len() as u64));
        if found.required.iter().any(|name| !first.contains_key(name)) {
            self.strings.unkept.push(".required".into());
        }
        Rules::Named(named)
    }

    fn unkept<'b>(&mut self, bounds: impl Iterator<Item = &'b (u64, String)>) {
        self.strings.unkept.extend(bounds.map(|(_, place)| place.clone()));
    }

    fn rule(&mut self, types: Types, schema: &'a Value, place: &str) -> ValueRule {
        if types.has(Types::STRING) {
            return self.strings.rule(types, schema, place);
        }
        match self.alone(schema) {
            Some(mut schema) => match ends::cut(&mut schema, &mut self.cuts) {
                Ok(()) => ValueRule::Json { schema, lenient: false },
                Err(reason) => ValueRule::Never(reason),
            },
            None => {
                self.strings.unkept.push(place.into());
                ValueRule::Json { schema: Value::Bool(true), lenient: false }
            }
        }
    }

    /// A part that means the same without the rest; `None` if there are too many of them.
    fn alone(&mut self, schema: &Value) -> Option<Value> {
        let mut part = moved(schema);
        if schema.to_string().contains("\"$ref\"")
            && let Some(part) = part.as_object_mut()
        {
            self.copied += self.root.to_string().len();
            if self.copied > COPIED {
                return None;
            }
            let mut root = moved(self.root);
            if let Some(root) = root.as_object_mut() {
                ["$id", "id", "$schema"].iter().for_each(|word| drop(root.remove(*word)));
            }
            part.insert("$defs".into(), json!({ ROOT: root }));
        }
        Some(part)
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
            Value::Object(members.iter().map(member).collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.iter().map(moved).collect()),
        other => other.clone(),
    }
}
