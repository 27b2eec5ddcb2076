//! What a schema says about a value that may be a text.

use std::panic::{AssertUnwindSafe, catch_unwind};

use llguidance::derivre::{Regex, RegexBuilder};
use serde_json::{Map, Value, json};

use super::parameters::{UNWRITABLE, ValueRule};
use super::tags::CLOSED_TO_VALUES;
use super::words::{Word, subject};
use super::{ecma, known, tags};
use crate::parser::schema::{Types, list, target};
use crate::parser::value::json_of;

/// Most values that are listed one by one.
const MOST_LISTED: usize = 1024;
/// Work for one expression, about a millisecond.
const FUEL: u64 = 50_000;
/// Work for all expressions of a tool.
const ALL_FUEL: u64 = 40 * FUEL;

/// Reads schemas of values that may be texts.
pub(crate) struct Strings<'a> {
    root: &'a Value,
    budget: usize,
    /// Work that is left for expressions.
    fuel: u64,
    /// Keywords that are not kept, by their places.
    pub unkept: Vec<String>,
}

impl<'a> Strings<'a> {
    /// A reader of parts of `root`, of so many at most.
    pub fn new(root: &'a Value, budget: usize) -> Self {
        Self { root, budget, fuel: ALL_FUEL, unkept: Vec::new() }
    }

    /// The rule of a value of some types, a string among them.
    pub fn rule(&mut self, types: Types, schema: &'a Value, place: &str) -> ValueRule {
        let noted = self.unkept.len();
        if let Some(values) = self.listed(schema, place, &mut Vec::new()) {
            let printed: Vec<String> =
                values.iter().filter_map(|value| printed(value, types)).collect();
            return match printed.is_empty() {
                true => ValueRule::Never(UNWRITABLE),
                false => ValueRule::Listed(printed),
            };
        }
        self.unkept.truncate(noted);
        let of_text = types.only(Types::STRING.or(Types::NULL));
        let mut patterns = Vec::new();
        self.texts(schema, place, of_text, &mut patterns, &mut Vec::new());
        // A text that looks like a value of another type is read as one, and nothing is asked of those.
        let others = types.others();
        let others = (!others.is_empty()).then(|| json!({ "type": others }));
        match (self.is_empty(&patterns), others) {
            (false, others) => ValueRule::Text { patterns, others },
            (true, Some(schema)) => ValueRule::Json { schema, lenient: false },
            (true, None) => ValueRule::Never(UNWRITABLE),
        }
    }

    /// Expressions that a text matches, all of them; notes what is not kept.
    fn texts(
        &mut self,
        schema: &'a Value,
        place: &str,
        of_text: bool,
        patterns: &mut Vec<String>,
        followed: &mut Vec<&'a str>,
    ) {
        let Some(schema) = self.enter(schema) else { return };
        for (word, value) in schema {
            let here = format!("{place}.{word}");
            let is_kept = match word.as_str() {
                "type" => true,
                "$ref" => match target(self.root, schema) {
                    Some((pointer, target)) if !followed.contains(&pointer) => {
                        followed.push(pointer);
                        let place = pointer.replace('/', ".");
                        self.texts(target, &place, of_text, patterns, followed);
                        followed.pop();
                        true
                    }
                    Some(_) => true,
                    None => false,
                },
                "allOf" => {
                    for (index, member) in list(schema, word).enumerate() {
                        let place = format!("{here}[{index}]");
                        self.texts(member, &place, of_text, patterns, followed);
                    }
                    true
                }
                "oneOf" if !self.exclude_each_other(list(schema, word)) => false,
                "anyOf" | "oneOf" => {
                    let members = list(schema, word).enumerate();
                    let may_be_text = |member| Types::of_part(self.root, member).has(Types::STRING);
                    let telling: Vec<_> = members
                        .filter(|(_, member)| may_be_text(member) || !is_silent(member))
                        .collect();
                    match telling[..] {
                        [(index, member)] => {
                            let place = format!("{here}[{index}]");
                            self.texts(member, &place, of_text, patterns, followed);
                            true
                        }
                        _ => telling.iter().all(|(_, member)| is_silent(member)),
                    }
                }
                _ if subject(word) == Word::Strings => match self.expressions(word, value) {
                    Some(expressions) => {
                        patterns.extend(expressions);
                        true
                    }
                    None => false,
                },
                word => match subject(word) {
                    Word::Silent => true,
                    Word::Any => false,
                    // Nothing that a text has.
                    Word::Objects | Word::Others | Word::Strings => of_text,
                },
            };
            if !is_kept {
                self.unkept.push(here);
            }
        }
    }

    /// Whether no value fits two of these schemas, as their types tell.
    fn exclude_each_other(&self, mut members: impl Iterator<Item = &'a Value>) -> bool {
        let numbers = Types::INTEGER.or(Types::NUMBER);
        let mut seen = Types::NONE;
        members.all(|member| {
            let types = Types::of_part(self.root, member);
            let types = if types.has(numbers) { types.or(numbers) } else { types };
            let is_new = !seen.has(types);
            seen = seen.or(types);
            is_new
        })
    }

    /// All values, if the schema lists them.
    fn listed(
        &mut self,
        schema: &'a Value,
        place: &str,
        followed: &mut Vec<&'a str>,
    ) -> Option<Vec<Value>> {
        let schema = self.enter(schema)?;
        let mut found: Vec<Value> = Vec::new();
        let source = ["const", "enum", "$ref", "anyOf", "oneOf", "allOf", "type"]
            .into_iter()
            .find(|word| schema.contains_key(*word))?;
        match source {
            "const" => found.push(schema["const"].clone()),
            "enum" => found.extend(schema["enum"].as_array()?.iter().cloned()),
            "$ref" => {
                let (pointer, target) = target(self.root, schema)?;
                if followed.contains(&pointer) {
                    return None;
                }
                followed.push(pointer);
                let listed = self.listed(target, &pointer.replace('/', "."), followed);
                followed.pop();
                found = listed?;
            }
            "type" if schema["type"] == "null" => found.push(Value::Null),
            "type" => return None,
            word => {
                let members = schema[word].as_array()?;
                if members.is_empty() || word == "allOf" && members.len() > 1 {
                    return None;
                }
                for (index, member) in members.iter().enumerate() {
                    let place = format!("{place}.{word}[{index}]");
                    let mut listed = self.listed(member, &place, followed)?;
                    listed.dedup();
                    found.extend(listed);
                    if found.len() > MOST_LISTED {
                        return None;
                    }
                }
                if word == "oneOf" {
                    // What two members list fits none of them alone.
                    let all = found.clone();
                    found.retain(|value| all.iter().filter(|other| *other == value).count() == 1);
                }
            }
        }
        if found.len() > MOST_LISTED {
            return None;
        }
        for (word, value) in schema {
            self.filter(word, value, &format!("{place}.{word}"), source, &mut found);
        }
        if schema.get("nullable") == Some(&Value::Bool(true)) {
            found.push(Value::Null);
        }
        Some(found)
    }

    /// Keeps of listed values what another keyword of the same schema allows.
    fn filter(
        &mut self,
        word: &str,
        by: &Value,
        place: &str,
        source: &str,
        found: &mut Vec<Value>,
    ) {
        let is_kept = match word {
            _ if word == source => true,
            "type" => {
                found.retain(|value| is_of_type(value, by));
                true
            }
            _ if subject(word) == Word::Strings => {
                let expressions = self.expressions(word, by);
                match expressions.and_then(|all| self.matcher(&all)) {
                    Some(mut regex) => {
                        found
                            .retain(|value| value.as_str().is_none_or(|text| regex.is_match(text)));
                        true
                    }
                    _ => false,
                }
            }
            word => subject(word) == Word::Silent,
        };
        if !is_kept {
            self.unkept.push(place.into());
        }
    }

    /// The members of a schema, if there is still room for it.
    pub fn enter(&mut self, schema: &'a Value) -> Option<&'a Map<String, Value>> {
        match self.budget.checked_sub(1) {
            Some(budget) => self.budget = budget,
            None => {
                // Nobody has looked at the rest.
                if self.unkept.last().is_none_or(|last| !last.is_empty()) {
                    self.unkept.push(String::new());
                }
                return None;
            }
        }
        schema.as_object()
    }

    /// What a keyword asks of a text: expressions for all of it, as grammars write them between slashes.
    /// `None` if it cannot be kept.
    fn expressions(&mut self, word: &str, value: &Value) -> Option<Vec<String>> {
        let found = match word {
            "minLength" => match length(value)? {
                0 => Vec::new(),
                least => vec![format!("(?s:.{{{least},}})")],
            },
            "maxLength" => vec![format!("(?s:.{{0,{}}})", length(value)?)],
            "pattern" => {
                let all = ecma::expressions(value.as_str()?).ok()?;
                all.iter().map(ecma::Expression::whole).collect::<Option<_>>()?
            }
            _ => vec![known::expression(value.as_str()?)?],
        };
        let found: Vec<String> = found.iter().map(|one| one.replace('/', "\\/")).collect();
        // Whatever the library does not read would spoil the whole grammar.
        self.matcher(&found).map(|_| found)
    }

    /// Expressions at work; without any, all texts match.
    fn matcher(&mut self, expressions: &[String]) -> Option<Regex> {
        let all = expressions.iter().map(String::as_str).chain(["(?s:.*)"]);
        self.all_of(&all.collect::<Vec<_>>())
    }

    /// Whether no text that a call can hold matches all of these. What is too much work is taken for
    /// possible.
    fn is_empty(&mut self, patterns: &[String]) -> bool {
        if patterns.is_empty() {
            return false;
        }
        let without = tags::without(&CLOSED_TO_VALUES);
        let patterns: Vec<&str> =
            patterns.iter().map(String::as_str).chain([without.as_str()]).collect();
        let regex = self.all_of(&patterns);
        regex.and_then(|mut regex| quietly(|| Some(regex.always_empty()))) == Some(true)
    }

    /// One expression for the texts that match all of these.
    fn all_of(&mut self, patterns: &[&str]) -> Option<Regex> {
        let most = self.fuel.min(FUEL);
        let regex = quietly(|| {
            let mut builder = RegexBuilder::new();
            let all = builder.mk_regex_and(patterns).ok()?;
            builder.into_regex_limited(all, most).ok()
        });
        let cost = regex.as_ref().map_or(most, Regex::cost);
        self.fuel = self.fuel.saturating_sub(cost);
        regex
    }
}

/// A listed value as a call has it; `None` if none can hold it, or if it would be read as another one.
fn printed(value: &Value, types: Types) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let has_tag = CLOSED_TO_VALUES.iter().any(|tag| text.contains(tag));
    let read = || serde_json::from_str::<Value>(&json_of(types, &text)).ok();
    (!has_tag && read().as_ref() == Some(value)).then_some(text)
}

/// A length, which may be written with a point.
fn length(value: &Value) -> Option<u64> {
    let whole = |number: &f64| number.fract() == 0.0 && *number >= 0.0;
    value.as_u64().or_else(|| value.as_f64().filter(whole).map(|number| number as u64))
}

/// An assertion of the library is no answer.
fn quietly<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok().flatten()
}

/// Whether a schema says nothing but a type.
fn is_silent(schema: &Value) -> bool {
    let mut words = schema.as_object().into_iter().flatten();
    *schema != Value::Bool(false)
        && words.all(|(word, _)| word == "type" || subject(word) == Word::Silent)
}

fn is_of_type(value: &Value, types: &Value) -> bool {
    let is = |name: &Value| match name.as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => true,
    };
    match types {
        Value::Array(names) => names.iter().any(is),
        name => is(name),
    }
}
