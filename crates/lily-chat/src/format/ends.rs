//! Whether a text of a format can come to its end.

use std::collections::HashSet;

use lily_model::engine::TokenMask;
use llguidance::Matcher;
use llguidance::derivre::RegexBuilder;
use serde_json::{Map, Value};

use super::bound::allowed;
use super::ecma::{self, Expression};
use super::keywords::Fault;
use super::place::{self, children, is_definition};
use super::vocabulary::Vocabulary;
use crate::parser::schema::{list, target};

/// Tokens that are tried on the way to an end. A format that has not come to one by then is taken to
/// have one.
const STEPS: usize = 64;
/// Parts of a schema that are looked at, again for each way to them.
const PARTS: usize = 100_000;
/// References and members that are followed for a type, and members at each place.
const DEPTH: usize = 4;
const MEMBERS: usize = 4;
/// Endless parts of a tool's values that are forbidden.
pub(crate) const MOST_CUT: usize = 64;
/// Parts that could be looked at instead of one match of a pattern.
const MATCH: usize = 100;
/// Work for one pattern of names, about a millisecond.
const PATTERN_FUEL: u64 = 10_000;

/// Whether some text of a grammar ends; `false` only if all beginnings were tried. Tokens that hold
/// more than one byte are tried where there is none for their first byte.
pub(crate) fn reaches_end(start: &Matcher, vocabulary: &Vocabulary) -> bool {
    let mut steps = STEPS;
    // States with what is still to be tried in each.
    let mut open: Vec<(Matcher, Vec<u32>)> = Vec::new();
    let mut state = start.deep_clone();
    loop {
        match nexts(&mut state, vocabulary) {
            Next::End => return true,
            Next::Tokens(ids) => open.push((state, ids)),
        }
        state = loop {
            let Some((before, ids)) = open.last_mut() else { return false };
            let Some(id) = ids.pop() else {
                open.pop();
                continue;
            };
            if steps == 0 {
                return true;
            }
            steps -= 1;
            let mut after = before.clone();
            if after.consume_token(id).is_ok() {
                break after;
            }
        };
    }
}

enum Next {
    /// The text may end here.
    End,
    /// It goes on with one of these, or not at all.
    Tokens(Vec<u32>),
}

fn nexts(state: &mut Matcher, vocabulary: &Vocabulary) -> Next {
    let mut mask = TokenMask::none(vocabulary.len());
    if allowed(state, &vocabulary.stop_ids, &mut mask).is_err() {
        return Next::Tokens(Vec::new());
    }
    if vocabulary.stop_ids.iter().any(|&id| mask.allows(id)) {
        return Next::End;
    }
    let ids = 0..u32::try_from(vocabulary.len()).unwrap_or(u32::MAX);
    let bytes = |id: u32| vocabulary.tokenizer.token_bytes(id).unwrap_or(&[]);
    let found: Vec<u32> = ids.filter(|&id| mask.allows(id)).collect();
    let mut single = [false; 256];
    for &id in &found {
        if let [byte] = bytes(id) {
            single[usize::from(*byte)] = true;
        }
    }
    let is_new = |id: &u32| match bytes(*id) {
        [first, _, ..] => vocabulary.tokenizer.is_control(*id) || !single[usize::from(*first)],
        _ => true,
    };
    Next::Tokens(found.into_iter().filter(is_new).collect())
}

/// What is said of a schema without a finite value, where a part of it leads back to itself, and where it
/// does not.
const ENDLESS: &str = "no finite text fits it: what it requires contains itself";
const EMPTY: &str = "no text fits it: it requires what it forbids";

/// The first part of a schema without a finite value, if there is one: also where it may be left out
/// a model could begin it, and would never come to its end.
pub(crate) fn endless(schema: &Value) -> Option<Fault> {
    let finite = Finite { root: schema, left: PARTS, followed: Vec::new(), has_turned: false };
    let mut search = Search { finite, seen: HashSet::new() };
    let place = search.part(schema, "")?;
    Some(Fault { place, reason: search.finite.reason().into() })
}

/// Forbids the parts of a schema that no finite value fits, as long as some cuts are `left`.
///
/// # Errors
/// Why there is none of the whole.
pub(crate) fn cut(schema: &mut Value, left: &mut usize) -> Result<(), &'static str> {
    while let Some(fault) = endless(schema) {
        match place::part_mut(schema, &fault.place) {
            Some(part) if !fault.place.is_empty() && *left > 0 => *part = Value::Bool(false),
            _ => return Err(if fault.reason == EMPTY { EMPTY } else { ENDLESS }),
        }
        *left -= 1;
    }
    Ok(())
}

struct Search<'a> {
    finite: Finite<'a>,
    /// References that were followed: definitions that nothing refers to do not matter.
    seen: HashSet<&'a str>,
}

impl<'a> Search<'a> {
    /// Where the first endless part is of one that stands at a place.
    fn part(&mut self, part: &'a Value, place: &str) -> Option<String> {
        self.finite.has_turned = false;
        if !self.finite.value(part) {
            return Some(place.to_owned());
        }
        let target = part.as_object().and_then(|members| target(self.finite.root, members));
        if let Some((pointer, target)) = target
            && self.seen.insert(pointer)
            && let Some(found) = self.part(target, &pointer.replace('/', "."))
        {
            return Some(found);
        }
        let parts = children(part).into_iter().filter(|(step, _)| !is_definition(step));
        parts.into_iter().find_map(|(step, part)| self.part(part, &format!("{place}{step}")))
    }
}

struct Finite<'a> {
    root: &'a Value,
    left: usize,
    /// References that led here: behind one of them again there is no end.
    followed: Vec<&'a str>,
    /// One of them was met again.
    has_turned: bool,
}

impl<'a> Finite<'a> {
    /// Why there is no finite value of what was looked at last.
    fn reason(&self) -> &'static str {
        if self.has_turned { ENDLESS } else { EMPTY }
    }

    fn value(&mut self, schema: &'a Value) -> bool {
        let Some(members) = schema.as_object() else { return *schema != Value::Bool(false) };
        let Some(left) = self.left.checked_sub(1) else { return true };
        self.left = left;
        if members.contains_key("const") || members.contains_key("enum") {
            return true;
        }
        let mut all = list(members, "allOf");
        if !all.all(|member| self.value(member)) || !self.reference(members) {
            return false;
        }
        for word in ["anyOf", "oneOf"] {
            let mut one = list(members, word).peekable();
            if one.peek().is_some() && !one.any(|member| self.value(member)) {
                return false;
            }
        }
        let is_only = |name| self.is_only(members, name, DEPTH);
        match (is_only("object"), is_only("array")) {
            (true, _) => self.object(members),
            (_, true) => self.array(members),
            // Other values have no parts.
            _ => true,
        }
    }

    /// Whether a schema allows values of one type alone, as far as it says so itself, in one of its
    /// members or where it refers to.
    fn is_only(&self, schema: &'a Map<String, Value>, name: &str, depth: usize) -> bool {
        let Some(depth) = depth.checked_sub(1) else { return false };
        let further = |part: &'a Value| {
            part.as_object().is_some_and(|members| self.is_only(members, name, depth))
        };
        match schema.get("type") {
            Some(Value::Array(names)) => names.iter().all(|one| one == name),
            Some(one) => one == name,
            None => {
                // The first members tell: a bound for those that multiply.
                list(schema, "allOf").take(MEMBERS).any(further)
                    || target(self.root, schema).is_some_and(|(_, target)| further(target))
            }
        }
    }

    fn reference(&mut self, schema: &'a Map<String, Value>) -> bool {
        let Some((pointer, target)) = target(self.root, schema) else { return true };
        if self.followed.contains(&pointer) {
            self.has_turned = true;
            return false;
        }
        self.followed.push(pointer);
        let is_finite = self.value(target);
        self.followed.pop();
        is_finite
    }

    fn object(&mut self, schema: &'a Map<String, Value>) -> bool {
        let named = schema.get("properties").and_then(Value::as_object);
        let mut required: Vec<&str> = list(schema, "required").filter_map(Value::as_str).collect();
        required.sort_unstable();
        required.dedup();
        let has_required = required.iter().all(|name| match named.and_then(|all| all.get(*name)) {
            Some(property) => self.value(property),
            None => self.unnamed(schema, name),
        });
        has_required && self.has_enough(schema, required.len())
    }

    /// Whether there is a finite value for a name that the schema does not list. Whether a pattern fits is not
    /// always known: one of those that may is enough.
    fn unnamed(&mut self, schema: &'a Map<String, Value>, name: &str) -> bool {
        let patterns = schema.get("patternProperties").and_then(Value::as_object);
        let mut fitting = Vec::new();
        for (pattern, one) in patterns.into_iter().flatten() {
            let Some(left) = self.left.checked_sub(MATCH) else { return true };
            self.left = left;
            if may_match(pattern, name) {
                fitting.push(one);
            }
        }
        if fitting.is_empty() {
            fitting.extend(schema.get("additionalProperties"));
        }
        fitting.is_empty() || fitting.into_iter().any(|one| self.value(one))
    }

    /// Whether there are finite values for as many properties as there must be, beside those that are
    /// required.
    fn has_enough(&mut self, schema: &'a Map<String, Value>, required: usize) -> bool {
        let least = schema.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
        let least = usize::try_from(least).unwrap_or(usize::MAX);
        if least <= required {
            return true;
        }
        let further = schema.get("patternProperties").and_then(Value::as_object);
        let additional = schema.get("additionalProperties").unwrap_or(&Value::Bool(true));
        if further.into_iter().flat_map(Map::values).chain([additional]).any(|one| self.value(one))
        {
            return true;
        }
        let named = schema.get("properties").and_then(Value::as_object);
        let named = named.into_iter().flat_map(Map::values).filter(|one| self.value(one));
        named.take(least).count() >= least
    }

    fn array(&mut self, schema: &'a Map<String, Value>) -> bool {
        let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        let least = usize::try_from(least).unwrap_or(usize::MAX);
        let first = list(schema, "prefixItems").count();
        let mut needed = list(schema, "prefixItems").take(least);
        let items = schema.get("items").filter(|_| least > first);
        needed.all(|item| self.value(item)) && items.is_none_or(|items| self.value(items))
    }
}

/// Whether a pattern of names fits one. What is too much work is taken for possible.
fn may_match(pattern: &str, name: &str) -> bool {
    let matches = |one: &Expression| {
        let mut builder = RegexBuilder::new();
        let search = builder.mk_regex_for_serach(&one.search()).ok()?;
        Some(builder.to_regex_limited(search, PATTERN_FUEL).ok()?.is_match(name))
    };
    let all = ecma::expressions(pattern).unwrap_or_default();
    !all.iter().any(|one| matches(one) == Some(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_schema_is_finite_if_some_value_of_it_is() {
        let list = |least: usize| {
            json!({ "$ref": "#/$defs/l", "$defs": { "l": {
                "type": "array", "minItems": least, "items": { "$ref": "#/$defs/l" } } } })
        };
        for (schema, finite) in [
            (json!(true), true),
            (json!(false), false),
            (json!({ "type": "string" }), true),
            (json!({ "$ref": "#" }), false),
            (
                json!({ "type": "object", "required": ["a"], "properties": { "a": { "$ref": "#" } } }),
                false,
            ),
            (json!({ "type": "object", "properties": { "a": { "$ref": "#" } } }), true),
            (
                json!({ "type": "object", "required": ["a"], "properties": { "a":
                    { "anyOf": [{ "$ref": "#" }, { "type": "null" }] } } }),
                true,
            ),
            (
                json!({ "type": ["object"], "required": ["a"], "properties": { "a":
                    { "allOf": [{ "$ref": "#" }, { "title": "x" }] } } }),
                false,
            ),
            (list(0), true),
            (list(1), false),
            (
                json!({ "type": "array", "minItems": 1, "prefixItems": [{ "type": "null" }], "items": { "$ref": "#" } }),
                true,
            ),
            (
                json!({ "type": "array", "minItems": 2, "prefixItems": [{ "type": "null" }], "items": { "$ref": "#" } }),
                false,
            ),
            (json!({ "const": 1, "$ref": "#" }), true),
            (
                json!({ "type": "object", "required": ["a"], "additionalProperties": { "$ref": "#" } }),
                false,
            ),
            (
                json!({ "type": "object", "required": ["a"], "patternProperties": { "^a": {} },
                    "additionalProperties": { "$ref": "#" } }),
                true,
            ),
            (
                json!({ "type": "object", "required": ["a"],
                    "patternProperties": { "^a": { "$ref": "#" } } }),
                false,
            ),
            (
                json!({ "type": "object", "required": ["b"],
                    "patternProperties": { "^a": { "$ref": "#" } } }),
                true,
            ),
            (
                json!({ "type": "object", "minProperties": 1, "additionalProperties": { "$ref": "#" } }),
                false,
            ),
            (
                json!({ "type": "object", "minProperties": 1, "additionalProperties": false,
                    "patternProperties": { "^a": { "$ref": "#" } } }),
                false,
            ),
            (
                json!({ "type": "object", "minProperties": 1, "properties": { "a": {} },
                    "additionalProperties": { "$ref": "#" } }),
                true,
            ),
            (
                json!({ "type": "object", "minProperties": 2, "required": ["a"],
                    "properties": { "a": {} }, "additionalProperties": { "$ref": "#" } }),
                false,
            ),
            (json!({ "type": "object", "minProperties": 1 }), true),
            (
                json!({ "allOf": [{ "type": "object" }], "required": ["a"],
                    "properties": { "a": { "$ref": "#" } } }),
                false,
            ),
            // A value of another type has no parts.
            (json!({ "required": ["a"], "properties": { "a": { "$ref": "#" } } }), true),
        ] {
            let whole = endless(&schema).filter(|fault| fault.place.is_empty());
            assert_eq!(whole.is_none(), finite, "{schema}");
        }
    }

    #[test]
    fn only_what_leads_back_to_itself_is_said_to_contain_itself() {
        for (schema, reason) in [
            (json!({ "$ref": "#" }), ENDLESS),
            (
                json!({ "type": "object", "minProperties": 1, "additionalProperties": { "$ref": "#" } }),
                ENDLESS,
            ),
            (json!(false), EMPTY),
            (json!({ "type": "object", "required": ["a"], "additionalProperties": false }), EMPTY),
            (json!({ "type": "object", "minProperties": 1, "additionalProperties": false }), EMPTY),
            (json!({ "anyOf": [false] }), EMPTY),
        ] {
            assert_eq!(endless(&schema).unwrap().reason, reason, "{schema}");
        }
    }

    #[test]
    fn endless_parts_are_cut_off_where_they_may_be_left_out() {
        let mut schema = json!({ "type": "object", "properties": {
            "a": { "type": "object", "minProperties": 1, "additionalProperties": { "$ref": "#/properties/a" } },
            "b": { "anyOf": [{ "$ref": "#/properties/a" }, { "type": "null" }] } } });
        let mut left = 2;
        assert_eq!(cut(&mut schema, &mut left), Ok(()));
        assert_eq!(endless(&schema), None);
        assert_eq!(schema["properties"]["b"]["anyOf"][1], json!({ "type": "null" }));
        let mut whole = json!({ "$ref": "#" });
        assert_eq!(cut(&mut whole, &mut left), Err(ENDLESS));
    }

    #[test]
    fn an_endless_part_is_found_also_where_it_may_be_left_out() {
        let node = json!({ "type": "object", "required": ["next"],
            "properties": { "next": { "$ref": "#/$defs/node" } } });
        for (schema, place) in [
            (json!({ "properties": { "a": { "$ref": "#/$defs/node" } } }), ".properties.a"),
            (json!({ "items": { "anyOf": [{ "$ref": "#/$defs/node" }, {}] } }), ".items.anyOf[0]"),
            (
                json!({ "type": "array", "items": { "$ref": "#/$defs/list" } }),
                ".$defs.list.properties.first",
            ),
        ] {
            let mut schema = schema;
            let list = json!({ "properties": { "first": { "$ref": "#/$defs/node" } } });
            schema["$defs"] = json!({ "node": node, "list": list });
            let fault = endless(&schema).unwrap_or_else(|| panic!("{schema} ends"));
            assert_eq!(fault.place, place, "{schema}");
        }
        let tree = json!({ "type": "object", "required": ["all"],
            "properties": { "all": { "type": "array", "items": { "$ref": "#" } } } });
        assert_eq!(endless(&tree), None);
        assert_eq!(endless(&json!({ "type": "string", "$defs": { "node": node } })), None);
    }
}
