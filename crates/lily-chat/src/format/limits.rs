//! Sizes beyond which a format is not tried: the library takes no break, so that whoever asks for too
//! much would take a thread from the others, whether he waits or not.

use serde_json::Value;

use super::decimal::Decimal;

/// Largest schema, or list of texts, in bytes.
pub(crate) const LONGEST: usize = 256 << 10;
/// Longest grammar or expression, in bytes: some take time by the square of their length.
pub(crate) const LONGEST_GRAMMAR: usize = 16 << 10;
/// Work for the lexer of a format: about a tenth of a second.
pub(crate) const FUEL: u64 = 400_000;
/// Most ways to go on at one place of a text, as the library counts them: about four for each property
/// that may be left out.
pub(crate) const MOST_OPEN: usize = 10_000;
/// Largest product of the different `multipleOf` of a schema, without their points: a number is divided digit by digit,
/// each remainder is a state, and where several hold, each combination of remainders.
const LARGEST_STEPS: f64 = 10_000.0;
/// Most digits behind the point of a `multipleOf`, and most between two of them: the library has whole numbers of 32
/// bits for products with powers of ten.
const MOST_PLACES: u32 = 9;
const MOST_APART: u32 = 4;
/// Deepest nesting of brackets in a grammar or an expression, which are read by recursion.
const DEEPEST: usize = 200;
/// Most parts of a schema.
pub(crate) const MOST_PARTS: usize = 10_000;
/// Most parts of all schemas of a request's tools.
pub(crate) const MOST_TOOL_PARTS: usize = 50_000;
/// Most parts in one object or list of a schema: they take time by the square of their number.
const MOST_SIBLINGS: usize = 1_000;
/// Most properties of an object that counts them, and most patterns of names: they take time by the
/// cube of their number.
const MOST_COUNTED: usize = 64;

/// Most expressions that one text has to match together: time doubles with each.
const MOST_JOINED: usize = 12;

/// Refuses what is longer than `most`.
pub(crate) fn check_size(bytes: usize, most: usize) -> Result<(), String> {
    match bytes > most {
        true => Err(format!("it has {bytes} bytes, but at most {most} are supported")),
        false => Ok(()),
    }
}

/// Refuses a schema that is too large; tells its parts otherwise.
pub(crate) fn check_schema(schema: &Value) -> Result<usize, String> {
    check_size(schema.to_string().len(), LONGEST)?;
    let Parts { all, siblings, counted } = Parts::of(schema);
    if all > MOST_PARTS {
        return Err(format!(
            "it has {all} parts, but at most {MOST_PARTS} are supported; ask for less at once"
        ));
    }
    if siblings > MOST_SIBLINGS {
        return Err(format!(
            "it has {siblings} properties or alternatives in one place, but at most {MOST_SIBLINGS} are \
             supported; ask for less at once"
        ));
    }
    check_joined(joined_patterns(schema, count(schema, &expressions)))?;
    if counted > MOST_COUNTED {
        return Err(format!(
            "it has {counted} properties beside `minProperties` or `maxProperties`, or \
             `patternProperties`, but at most {MOST_COUNTED} are supported there; ask for less at once"
        ));
    }
    Ok(all)
}

/// How large a schema is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Members of objects and arrays, at any depth; the square of those that are counted.
    pub all: usize,
    /// Most of them in one object, or in one array of schemas.
    siblings: usize,
    /// Most properties of an object that counts them, or patterns of names.
    counted: usize,
}

impl Parts {
    pub fn of(schema: &Value) -> Self {
        let mut parts = Self::default();
        parts.add(schema);
        parts
    }

    fn add(&mut self, value: &Value) {
        match value {
            Value::Object(members) => {
                self.all += members.len();
                self.siblings = self.siblings.max(members.len());
                let size = |word: &str| {
                    members.get(word).and_then(Value::as_object).map_or(0, serde_json::Map::len)
                };
                let bounds = ["minProperties", "maxProperties"];
                let has_bound = bounds.iter().any(|word| members.contains_key(*word));
                let properties = if has_bound { size("properties") } else { 0 };
                let counted = properties.max(size("patternProperties"));
                self.counted = self.counted.max(counted);
                self.all += counted * counted;
                members.values().for_each(|member| self.add(member));
            }
            Value::Array(items) => {
                self.all += items.len();
                if items.iter().any(Value::is_object) {
                    self.siblings = self.siblings.max(items.len());
                }
                items.iter().for_each(|item| self.add(item));
            }
            _ => {}
        }
    }
}

fn check_joined(joined: usize) -> Result<(), String> {
    match joined > MOST_JOINED {
        true => Err(format!(
            "{joined} expressions may have to match one text together, but at most {MOST_JOINED} are supported"
        )),
        false => Ok(()),
    }
}

/// Most expressions that a part of the schema may join: all that there are, where an `allOf` refers elsewhere.
fn joined_patterns(schema: &Value, all: usize) -> usize {
    match schema {
        Value::Object(members) => {
            let listed = members.get("allOf").map_or(0, |parts| match count(parts, &references) {
                0 => count(parts, &expressions),
                _ => all,
            });
            let here = members.get("pattern").map_or(0, |value| expressions("pattern", value));
            members.values().map(|one| joined_patterns(one, all)).fold(listed + here, usize::max)
        }
        Value::Array(items) => {
            items.iter().map(|item| joined_patterns(item, all)).max().unwrap_or(0)
        }
        _ => 0,
    }
}

/// Expressions of a keyword: a pattern, and its look-aheads.
fn expressions(word: &str, value: &Value) -> usize {
    match (word, value) {
        ("pattern", Value::String(text)) => {
            1 + text.matches("(?=").count() + text.matches("(?!").count()
        }
        _ => 0,
    }
}

fn references(word: &str, _: &Value) -> usize {
    usize::from(word == "$ref")
}

/// The sum of what members count, at any depth.
fn count(value: &Value, member: &impl Fn(&str, &Value) -> usize) -> usize {
    match value {
        Value::Object(members) => {
            members.iter().map(|(word, value)| member(word, value) + count(value, member)).sum()
        }
        Value::Array(items) => items.iter().map(|item| count(item, member)).sum(),
        _ => 0,
    }
}

/// Refuses a schema with steps that make too many states.
pub(crate) fn check_steps(schema: &Value) -> Result<(), String> {
    let mut steps = Vec::new();
    collect_steps(schema, &mut steps);
    check_product(steps)
}

fn collect_steps(schema: &Value, steps: &mut Vec<f64>) {
    match schema {
        Value::Object(members) => {
            steps.extend(members.get("multipleOf").and_then(Value::as_f64));
            members.values().for_each(|member| collect_steps(member, steps));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_steps(item, steps)),
        _ => {}
    }
}

/// Refuses a grammar or an expression that is too large.
pub(crate) fn check_text(text: &str) -> Result<(), String> {
    check_size(text.len(), LONGEST_GRAMMAR)?;
    check_nesting(text)?;
    check_product(written_steps(text))
}

/// Refuses a grammar that joins too many terms.
pub(crate) fn check_joins(grammar: &str) -> Result<(), String> {
    check_joined(joined_terms(grammar))
}

fn check_product(mut steps: Vec<f64>) -> Result<(), String> {
    steps.sort_by(f64::total_cmp);
    steps.dedup();
    let steps: Vec<Option<Decimal>> = steps.into_iter().map(Decimal::of).collect();
    let digits = |step: &Option<Decimal>| step.map_or(f64::INFINITY, |step| step.digits as f64);
    let product: f64 = steps.iter().map(digits).product();
    if product > LARGEST_STEPS {
        return Err(format!(
            "the product of all different `multipleOf`, without their points, is {product:.0}, but at most \
             {LARGEST_STEPS} is supported"
        ));
    }
    let places = steps.iter().flatten().map(|step| step.places);
    let (least, most) = (places.clone().min().unwrap_or(0), places.max().unwrap_or(0));
    if most > MOST_PLACES || most - least > MOST_APART {
        return Err(format!(
            "a `multipleOf` has {most} digits behind the point, another one {least}, but at most {MOST_PLACES} \
             are supported, and {MOST_APART} between them"
        ));
    }
    Ok(())
}

/// Steps of the schemas that stand in the text of a grammar.
fn written_steps(grammar: &str) -> Vec<f64> {
    let behind = grammar.split("\"multipleOf\"").skip(1);
    let number = |text: &str| {
        let text = text.trim_start().strip_prefix(':')?.trim_start();
        let is_part = |c: char| c.is_ascii_digit() || ".+-eE".contains(c);
        text[..text.find(|c| !is_part(c)).unwrap_or(text.len())].parse().ok()
    };
    behind.filter_map(number).collect()
}

/// Terms that `&` may join in the text of a grammar, outside of its strings and expressions.
fn joined_terms(grammar: &str) -> usize {
    let (mut terms, mut inside, mut escaped) = (1, None, false);
    for c in grammar.chars() {
        match (inside, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(end), _) if c == end || c == '\n' => inside = None,
            (None, '"' | '/') => inside = Some(c),
            (None, '&') => terms += 1,
            _ => {}
        }
    }
    terms
}

fn check_nesting(text: &str) -> Result<(), String> {
    let (mut depth, mut deepest) = (0i64, 0i64);
    let mut repeated = 0;
    for c in text.chars() {
        depth += match c {
            '(' | '[' | '{' => 1,
            ')' | ']' | '}' => -1,
            _ => 0,
        };
        deepest = deepest.max(depth);
        repeated = if c == '~' { repeated + 1 } else { 0 };
        deepest = deepest.max(repeated);
    }
    if deepest > DEEPEST as i64 {
        return Err(format!("it is nested {deepest} deep, but at most {DEEPEST} is supported"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_are_counted_at_any_depth_and_side_by_side() {
        let schema = json!({ "type": "object", "enum": [1, 2, 3, 4, 5],
            "properties": { "a": { "anyOf": [{}, {}, true, {}] }, "b": {} } });
        let parts = Parts { all: 3 + 5 + 2 + 1 + 4, siblings: 4, counted: 0 };
        assert_eq!(Parts::of(&schema), parts);
        let wide = |count: usize| {
            let all = (0..count).map(|index| (format!("p{index}"), json!(true)));
            json!({ "properties": all.collect::<serde_json::Map<_, _>>() })
        };
        assert_eq!(check_schema(&wide(MOST_SIBLINGS)), Ok(1 + MOST_SIBLINGS));
        let reason = check_schema(&wide(MOST_SIBLINGS + 1)).unwrap_err();
        assert!(reason.contains("1001 properties") && reason.contains("at most 1000"), "{reason}");
        let counted = |word: &str, count: usize| {
            let mut schema = wide(count);
            schema[word] = json!(1);
            schema
        };
        let most = counted("minProperties", MOST_COUNTED);
        assert_eq!(check_schema(&most), Ok(2 + MOST_COUNTED + MOST_COUNTED * MOST_COUNTED));
        let reason = check_schema(&counted("maxProperties", MOST_COUNTED + 1)).unwrap_err();
        assert!(reason.contains("65 properties") && reason.contains("at most 64"), "{reason}");
        let mut patterns = wide(0);
        patterns["patternProperties"] = wide(MOST_COUNTED + 1)["properties"].clone();
        assert!(check_schema(&patterns).is_err());
        let many = json!({ "enum": vec![1; MOST_PARTS] });
        assert!(check_schema(&many).unwrap_err().contains("10001 parts, but at most 10000"));
        assert!(check_schema(&json!("x".repeat(LONGEST))).unwrap_err().contains("bytes"));
    }

    #[test]
    fn steps_are_bounded_by_their_digits() {
        let steps = |all: &[f64]| {
            let all: Vec<Value> = all.iter().map(|step| json!({ "multipleOf": step })).collect();
            check_steps(&json!({ "allOf": all }))
        };
        for all in [&[0.07][..], &[0.01, 7.0, 0.5], &[10_000.0], &[0.000_000_001], &[1.0, 0.0001]] {
            assert_eq!(steps(all), Ok(()), "{all:?}");
        }
        for all in
            [&[0.10001][..], &[10_001.0], &[101.0, 10.1], &[1e-10], &[1.0, 0.00001], &[1e-300]]
        {
            assert!(steps(all).is_err(), "{all:?}");
        }
    }

    #[test]
    fn expressions_that_have_to_match_together_are_bounded() {
        let patterns = |count: usize| vec![json!({ "pattern": "a" }); count];
        let joined = |count| json!({ "properties": { "a": { "allOf": patterns(count) } } });
        assert!(check_schema(&joined(MOST_JOINED)).is_ok());
        let reason = check_schema(&joined(MOST_JOINED + 1)).unwrap_err();
        assert!(reason.contains("13 expressions") && reason.contains("at most 12"), "{reason}");
        // Behind a reference there may be as many as there are.
        let referred = json!({ "allOf": [{ "$ref": "#/$defs/a" }], "$defs": { "a": joined(13) } });
        assert!(check_schema(&referred).is_err());
        let ahead = |count: usize| json!({ "pattern": format!("^{}", "(?=.*a)".repeat(count)) });
        assert!(check_schema(&ahead(MOST_JOINED - 1)).is_ok());
        assert!(check_schema(&ahead(MOST_JOINED)).is_err());
        let apart = json!({ "anyOf": patterns(40) });
        assert!(check_schema(&apart).is_ok());
        let grammar = |count: usize| format!("start: A\nA: {}", vec!["/a&&b/"; count].join(" & "));
        assert!(check_joins(&grammar(MOST_JOINED)).is_ok());
        assert!(check_joins(&grammar(MOST_JOINED + 1)).is_err());
        assert!(check_joins(&format!("start: \"{}\"", "&".repeat(40))).is_ok());
    }
}
