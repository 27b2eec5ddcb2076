//! Formats over lily's own vocabulary, with texts that chance writes.

use lily_model::engine::{Allowed, Constraint, TokenMask};
use lily_text::{SYNTH_MIN_VOCAB, Thinking, Tokenizer, synth_tokenizer_files};
use serde_json::{Value, json};

use super::*;
use crate::parser::{Ended, MessageParser, Parsed};
use crate::thought::Thought;

mod calls;
mod thoughts;

/// Words of several bytes besides the bytes.
const VOCAB: usize = SYNTH_MIN_VOCAB + 200;

fn tokenizer() -> Tokenizer {
    let files = synth_tokenizer_files(VOCAB).unwrap();
    Tokenizer::from_json(files.tokenizer_json.as_bytes()).unwrap()
}

fn formats() -> Formats {
    let tokenizer = tokenizer();
    Formats::new(&tokenizer, tokenizer.end_tokens()).unwrap()
}

fn bind(format: &Format) -> Result<Bound, FormatError> {
    let rules = Rules {
        format: Some(format),
        tools: &[],
        strict: &[],
        calls: CallRule::Auto,
        parallel: true,
    };
    formats().bind(&rules).map(Option::unwrap)
}

fn allowed(constraint: &mut dyn Constraint) -> Vec<u32> {
    let mut mask = TokenMask::none(VOCAB);
    let all = 0..u32::try_from(VOCAB).unwrap();
    match constraint.mask(&mut mask).unwrap() {
        Allowed::All => all.collect(),
        Allowed::Masked => all.filter(|&id| mask.allows(id)).collect(),
    }
}

/// Numbers that look like chance.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// A text that chance writes within a format, up to the token that ends it. Now and then it takes
/// what brings a text to its end.
fn written(constraint: &mut dyn Constraint, seed: u64, tokenizer: &Tokenizer) -> String {
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut ids = Vec::new();
    for _ in 0..20_000 {
        let ids_allowed = allowed(constraint);
        let ends = |id: &u32| {
            tokenizer.end_tokens().contains(id)
                || b"\"]}<\n/pft>".contains(&(*id as u8)) && *id < 256
        };
        let closing: Vec<u32> = ids_allowed.iter().copied().filter(ends).collect();
        let from = match chance.below(4) {
            0 if !closing.is_empty() => &closing,
            _ => &ids_allowed,
        };
        let id = from[chance.below(from.len())];
        // Chance alone does not spell what ends a value.
        let closes = chance.below(16) == 0 && ids.last() != Some(&u32::from(b'<'));
        let end = b"\n</parameter>".map(u32::from);
        for &id in end.iter().filter(|_| closes) {
            if !allowed(constraint).contains(&id) {
                break;
            }
            constraint.accept(id).unwrap();
            ids.push(id);
        }
        if !allowed(constraint).contains(&id) {
            continue;
        }
        constraint.accept(id).unwrap();
        if tokenizer.end_tokens().contains(&id) {
            return tokenizer.decode(&ids);
        }
        ids.push(id);
    }
    panic!("no end: {}", tokenizer.decode(&ids));
}

/// Texts of a format, by several seeds.
fn texts(format: &Format) -> Vec<String> {
    let (tokenizer, bound) = (tokenizer(), bind(format).unwrap());
    (1..12).map(|seed| written(&mut bound.clone(), seed, &tokenizer)).collect()
}

/// JSON texts of a schema.
fn values(schema: Value) -> Vec<Value> {
    let parsed = |text: String| {
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    texts(&Format::JsonSchema(schema)).into_iter().map(parsed).collect()
}

#[test]
fn what_chance_writes_within_a_schema_fits_it() {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "minLength": 1, "maxLength": 9 },
            "kind": { "enum": ["cat", "dog", 7, null] },
            "ages": { "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 150 },
                "minItems": 1, "maxItems": 3 },
            "owner": { "$ref": "#/$defs/owner" },
        },
        "required": ["name", "kind", "ages", "owner"],
        "additionalProperties": false,
        "$defs": { "owner": { "type": "object", "required": ["ok"], "additionalProperties": false,
            "properties": { "ok": { "type": "boolean" }, "of": { "$ref": "#/$defs/owner" } } } },
    });
    for value in values(schema) {
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["name", "kind", "ages", "owner"]);
        let length = value["name"].as_str().unwrap().chars().count();
        assert!((1..=9).contains(&length), "{value}");
        assert!([json!("cat"), json!("dog"), json!(7), Value::Null].contains(&value["kind"]));
        let ages = value["ages"].as_array().unwrap();
        assert!((1..=3).contains(&ages.len()));
        assert!(ages.iter().all(|age| age.as_u64().is_some_and(|age| age <= 150)), "{value}");
        let mut owner = &value["owner"];
        while !owner["of"].is_null() {
            assert!(owner["ok"].is_boolean());
            owner = &owner["of"];
        }
        assert!(owner["ok"].is_boolean());
    }
}

#[test]
fn what_chance_writes_as_a_json_object_is_one() {
    // Any value will do.
    let mut any = bind(&Format::JsonSchema(json!(true))).unwrap();
    assert!(b"{[\"-0tfn".iter().all(|&b| allowed(&mut any).contains(&u32::from(b))));
    for text in texts(&Format::JsonObject) {
        let value: Value = serde_json::from_str(&text).unwrap();
        assert!(value.is_object(), "{text}");
    }
}

#[test]
fn white_space_in_json_has_an_end() {
    let bound = bind(&Format::JsonSchema(json!({ "type": "array" }))).unwrap();
    let mut bound: Box<dyn Constraint> = Box::new(bound);
    bound.accept(u32::from(b'[')).unwrap();
    for blank in [b' ', b'\n'] {
        let mut bound = bound.clone();
        let mut count = 0;
        while allowed(bound.as_mut()).contains(&u32::from(blank)) {
            bound.accept(u32::from(blank)).unwrap();
            count += 1;
            assert!(count < 100, "no end of {blank}");
        }
        assert!(count > 0);
    }
}

#[test]
fn what_chance_writes_matches_its_expression_grammar_or_list() {
    for text in texts(&Format::Regex("[A-Z]{2}-[0-9]{3,5}".into())) {
        let (letters, digits) = text.split_once('-').unwrap();
        assert!(letters.len() == 2 && letters.bytes().all(|b| b.is_ascii_uppercase()), "{text}");
        assert!((3..=5).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()));
    }
    let lark = "start: sum\nsum: NUMBER (\"+\" sum)?\nNUMBER: /[0-9]{1,3}/\n";
    for text in texts(&Format::Grammar(lark.into())) {
        assert!(text.split('+').all(|number| number.parse::<u16>().is_ok()), "{text}");
    }
    // One of them is the beginning of another.
    let choice = ["yes", "no", "note", "Grüße \"x\"\n"];
    let mut seen = std::collections::HashSet::new();
    for text in texts(&Format::Choice(choice.map(str::to_owned).into())) {
        assert!(choice.contains(&text.as_str()), "{text}");
        seen.insert(text);
    }
    assert!(seen.len() > 1);
}

#[test]
fn escapes_of_json_are_no_way_around_the_class_of_a_pattern() {
    let patterns = [
        r#"^[^"\\]{3}$"#,
        r#"^[^\n"\\]{3}$"#,
        r#"^[^\\/:*?"<>|]{3}$"#,
        r"^[\x00-\x1f]{3}$",
        r"^[^ -~]{3}$",
        r"^\p{Cc}{3}$",
        r#"^(?!["\\])(?:\x01|"){3}$"#,
    ];
    // What may come behind the backslash of an escape.
    let escapes = |pattern: &str| {
        let schema = json!({ "type": "string", "pattern": pattern });
        let mut bound = bind(&Format::JsonSchema(schema)).unwrap();
        bound.accept(u32::from(b'"')).unwrap();
        bound.accept(u32::from(b'\\')).unwrap();
        let next = allowed(&mut bound);
        [b'u', b'"', b'\\'].map(|byte| next.contains(&u32::from(byte)))
    };
    for pattern in patterns {
        assert_eq!(escapes(pattern), [true, false, false], "{pattern}");
    }
    assert_eq!(escapes("^[^x]{3}$"), [true, true, true]);
    assert_eq!(escapes(r#"^[^"]{3}$"#), [true, false, true]);
}

#[test]
fn a_text_ends_only_where_its_format_does() {
    let tokenizer = tokenizer();
    let mut bound = bind(&Format::Regex("ab?".into())).unwrap();
    let ends = tokenizer.end_tokens();
    assert_eq!(allowed(&mut bound), [u32::from(b'a')]);
    bound.accept(u32::from(b'a')).unwrap();
    let next = allowed(&mut bound);
    assert!(ends.iter().all(|end| next.contains(end)) && next.contains(&u32::from(b'b')));
    bound.accept(u32::from(b'b')).unwrap();
    assert_eq!(allowed(&mut bound), ends);
    bound.accept(ends[0]).unwrap();
    // No control token is a text, even where any text is allowed.
    let mut free = bind(&Format::Regex("(?s:.*)".into())).unwrap();
    let next = allowed(&mut free);
    let texts = 0..u32::try_from(VOCAB).unwrap();
    assert!(
        texts
            .filter(|&id| tokenizer.is_control(id))
            .all(|id| !next.contains(&id) || ends.contains(&id))
    );
}

#[test]
fn a_token_that_is_not_allowed_ends_the_run_with_a_message() {
    let mut bound = bind(&Format::Regex("ab".into())).unwrap();
    let error = bound.accept(u32::from(b'x')).unwrap_err().to_string();
    assert!(error.starts_with("the reply's format cannot be kept any further"), "{error}");
    assert!(error.len() < 300 && !error.contains('\n'), "{error}");
}

#[test]
fn copies_go_their_own_ways() {
    let mut first = bind(&Format::Regex("(ab|cd)*".into())).unwrap();
    first.accept(u32::from(b'a')).unwrap();
    let mut second = first.clone();
    second.accept(u32::from(b'b')).unwrap();
    second.accept(u32::from(b'c')).unwrap();
    assert_eq!(allowed(&mut first), [u32::from(b'b')]);
    assert_eq!(allowed(&mut second), [u32::from(b'd')]);
}

fn refusal(format: Format) -> (String, String) {
    match bind(&format) {
        Err(FormatError::Refused { place, reason }) => (place, reason),
        other => panic!("{format:?} gives {other:?}"),
    }
}

#[test]
fn formats_without_a_meaning_are_refused_and_schemas_name_the_place() {
    for (schema, place) in [
        (json!({ "type": "objct" }), ".type"),
        (json!({ "properties": { "a": { "type": "string", "pattern": "(" } } }), ".properties.a"),
        (
            json!({ "type": "array", "items": { "anyOf": [{ "type": "null" }, { "not": {} }] } }),
            ".items.anyOf[1]",
        ),
        (json!({ "properties": { "a": { "$ref": "#/$defs/none" } } }), ".properties.a"),
        (json!({ "$ref": "https://example.com/other.json" }), ""),
        (json!({ "type": "string", "minLength": 3, "maxLength": 2 }), ""),
        (
            json!({ "type": "array", "items": { "type": "string", "pattern": "a\\" } }),
            ".items.pattern",
        ),
        (
            json!({ "type": "object", "required": ["a"], "properties": { "a": { "$ref": "#" } } }),
            "",
        ),
        (
            json!({ "$defs": { "x": { "contains": {}, "type": "array" } },
            "properties": { "b": { "$ref": "#/$defs/x" } } }),
            ".$defs.x",
        ),
    ] {
        let (found, reason) = refusal(Format::JsonSchema(schema.clone()));
        assert_eq!(found, place, "{schema}: {reason}");
        assert!(!reason.is_empty() && reason.len() < 600, "{reason}");
    }
    for format in [
        Format::Regex("a(".into()),
        Format::Regex("(?=a)b".into()),
        Format::Grammar("start: missing".into()),
        Format::Grammar(String::new()),
        Format::Grammar("start: @other".into()),
        Format::Grammar("start: <|no_such_token|>".into()),
        Format::Regex("a".repeat(limits::LONGEST_GRAMMAR + 1)),
        Format::JsonSchema(json!({ "type": "integer", "multipleOf": 999_983 })),
        // Each alone is small; together they are as many states as their product.
        Format::JsonSchema(
            json!({ "allOf": [{ "type": "integer", "multipleOf": 9973 }, { "multipleOf": 9967 }] }),
        ),
        Format::Grammar(
            "start: %json { \"allOf\": [{ \"type\": \"integer\", \"multipleOf\" : 9973 }, {\"multipleOf\":9967}] }".into(),
        ),
        Format::Grammar("start: a::0x0\na::_ : \"x\" %if is_ones([0:4]) | a::incr(_)".into()),
        Format::Grammar(format!("start: {}", "(".repeat(100_000))),
        Format::Grammar(format!("A: {}/a/\nstart: A", "~".repeat(100_000))),
        Format::Regex("(".repeat(100_000)),
        Format::Regex("ab\\".into()),
        // Nothing fits them, which shows behind their first token only.
        Format::Grammar("start: \"ab\" EMPTY\nEMPTY: /x/ & /y/\n".into()),
        Format::Grammar("start: \"a\" (\"b\" | \"cc\") <|im_end|> \"d\"\n".into()),
        Format::Regex("ab[^\\s\\S]".into()),
    ] {
        let (place, reason) = refusal(format);
        assert!(place.is_empty() && !reason.is_empty() && reason.len() < 1000, "{reason}");
    }
}

#[test]
fn whole_numbers_that_would_be_rounded_are_refused_by_place_and_value() {
    let large = 9_007_199_254_740_993_u64;
    let of = |schema: Value| json!({ "type": "object", "properties": { "id": schema } });
    for (schema, place) in [
        (of(json!({ "const": large })), ".properties.id.const"),
        (of(json!({ "enum": [1, large] })), ".properties.id.enum[1]"),
        (of(json!({ "type": "integer", "minimum": large })), ".properties.id.minimum"),
        (
            of(json!({ "type": "integer", "exclusiveMaximum": large })),
            ".properties.id.exclusiveMaximum",
        ),
    ] {
        let (found, reason) = refusal(Format::JsonSchema(schema));
        assert_eq!(found, place);
        assert!(reason.contains("9007199254740993"), "{reason}");
    }
    let grammar = format!("start: %json {{ \"const\": {large} }}");
    assert!(refusal(Format::Grammar(grammar)).1.contains("9007199254740993"));
    // Up to there they are exact.
    for exact in [9_007_199_254_740_991_i64, -9_007_199_254_740_991] {
        let schema = json!({ "type": "integer", "minimum": exact, "maximum": exact });
        assert!(values(schema).iter().all(|value| *value == exact));
        assert!(values(json!({ "const": exact })).iter().all(|value| *value == exact));
    }
}

#[test]
fn doubled_keys_do_not_count_towards_the_least_number_of_properties() {
    let least = |number: u64, more: Value| {
        let mut schema = json!({ "type": "object", "minProperties": number });
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    let numbers =
        json!({ "additionalProperties": { "type": "integer", "maximum": 9, "minimum": 0 } });
    let (place, reason) = refusal(Format::JsonSchema(least(2, numbers.clone())));
    assert_eq!(place, ".minProperties");
    assert!(reason.contains("it is 2") && reason.contains("at most 1"), "{reason}");
    for value in values(least(1, numbers)) {
        assert!(!value.as_object().unwrap().is_empty(), "{value}");
    }
    let closed = json!({ "additionalProperties": false, "required": ["a", "b"],
        "properties": { "a": { "const": 1 }, "b": { "const": 2 } } });
    assert!(values(least(2, closed)).iter().all(|value| value.as_object().unwrap().len() == 2));
}

#[test]
fn a_schema_that_takes_long_is_refused_before_the_work() {
    let wide = |count: usize| -> Value {
        let all = (0..count).map(|index| (format!("p{index}"), json!({})));
        json!({ "properties": all.collect::<serde_json::Map<_, _>>() })
    };
    let (place, reason) = refusal(Format::JsonSchema(wide(20_000)));
    assert_eq!(place, "");
    assert!(reason.contains("20001 parts, but at most"), "{reason}");
    // What is not refused goes on behind its first token too.
    let mut counted = wide(64);
    counted["minProperties"] = json!(1);
    counted["additionalProperties"] = json!(false);
    for largest in [wide(1_000), counted] {
        let mut bound = bind(&Format::JsonSchema(largest)).unwrap();
        for &byte in b"{\"p6\":1,\"p" {
            assert!(allowed(&mut bound).contains(&u32::from(byte)));
            bound.accept(u32::from(byte)).unwrap();
        }
        assert!(!allowed(&mut bound).is_empty());
    }
    let tools = [ToolSpec::new("fine", Value::Null), ToolSpec::new("t", wide(20_000))];
    for strict in [&[][..], &[false, true]] {
        let rules = Rules {
            format: None,
            tools: &tools,
            strict,
            calls: CallRule::Required,
            parallel: true,
        };
        match formats().bind(&rules) {
            Err(FormatError::Tool { tool: 1, reason, .. }) => {
                assert!(reason.contains("20001 parts"))
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_the_library_says_of_a_format_without_a_way_on_is_not_its_own_name() {
    // The second part has no text, which shows in the middle alone.
    let mut state = bind(&Format::Regex("ab".into())).unwrap();
    for id in b"ab".map(u32::from) {
        state.accept(id).unwrap();
    }
    let error = state.accept(u32::from(b'c')).unwrap_err().to_string();
    assert!(!error.contains("NoExtension") && error.contains("cannot be kept"), "{error}");
    assert_eq!(reason("NoExtensionBias\n<non-verbose/>"), NOTHING_FITS);
    assert_eq!(reason("mask: Too many items (limit 50000; mask); try avoiding"), TOO_COMPLEX);
}

#[test]
fn what_the_library_does_not_know_is_told_in_words_for_people() {
    let schema = |schema: Value| refusal(Format::JsonSchema(schema)).1;
    assert_eq!(schema(json!({ "not": {} })), "the key \"not\" is not supported");
    let two = json!({ "not": {}, "if": {} });
    assert!(schema(two).ends_with(" are not supported"));
    let border = refusal(Format::JsonSchema(json!({ "items": { "pattern": "\\bx" } })));
    assert_eq!(border.0, ".items.pattern");
    assert!(border.1.contains("is not supported"), "{}", border.1);
    let wrong = "the expression is wrong: unclosed group";
    assert_eq!(schema(json!({ "type": "string", "pattern": "(" })), wrong);
    let expression = refusal(Format::Regex("a(".into())).1;
    assert_eq!(expression, format!("{wrong}; it is \"a(\""));
    let grammar = refusal(Format::Grammar("start: A\nA: /b(/".into())).1;
    assert_eq!(grammar, format!("{wrong}; it is \"b(\""));
}

#[test]
fn r84_deep_and_recursive_schemas_are_kept_or_refused_but_never_endless() {
    let mut deep = json!({ "type": "string" });
    for depth in 0..14 {
        let other = json!({ "type": "object", "required": [format!("k{depth}")],
            "properties": { format!("k{depth}"): deep.clone() } });
        deep = json!({ "oneOf": [other, deep] });
    }
    let _ = bind(&Format::JsonSchema(deep));
    let tree = json!({ "$ref": "#/$defs/t", "$defs": { "t": { "type": "object",
        "required": ["c"], "additionalProperties": false,
        "properties": { "c": { "type": "array", "items": { "$ref": "#/$defs/t" } } } } } });
    assert!(bind(&Format::JsonSchema(tree)).is_ok());
    refusal(Format::JsonSchema(json!({ "$ref": "#" })));
}

#[test]
fn a_vocabulary_without_an_end_has_no_formats() {
    assert!(matches!(Formats::new(&tokenizer(), &[]), Err(FormatError::Unavailable(_))));
}

#[test]
fn a_grammar_that_asks_for_a_call_contradicts_their_prohibition() {
    let formats = formats();
    let call = tokenizer().id_of("<tool_call>").unwrap();
    let bind = |grammar: &str, calls: CallRule| {
        let format = Format::Grammar(grammar.into());
        let rules = Rules { format: Some(&format), tools: &[], strict: &[], calls, parallel: true };
        formats.bind(&rules).map(drop)
    };
    for grammar in [
        "start: \"a\"? <tool_call>".to_owned(),
        format!("start: \"a\" | <[{call}]>"),
        format!("start: \"a\" | <[0-3,{}-{}]>", call - 1, call + 1),
    ] {
        assert!(
            matches!(bind(&grammar, CallRule::Never), Err(FormatError::Refused { .. })),
            "{grammar}"
        );
        assert_eq!(bind(&grammar, CallRule::Auto), Ok(()), "{grammar}");
    }
    // As a text it is none.
    assert_eq!(bind("start: \"<tool_call>\" /<tool_call>/", CallRule::Never), Ok(()));
}

#[test]
fn work_that_nobody_waits_for_ends() {
    let patience = Patience::default();
    patience.end();
    let tools = [ToolSpec::new("t", Value::Null)];
    let schema = Format::JsonSchema(json!({ "properties": { "a": { "not": {} } } }));
    let formats = formats();
    for (format, calls) in [(Some(&schema), CallRule::Auto), (None, CallRule::Required)] {
        let rules = Rules { format, tools: &tools, strict: &[], calls, parallel: true };
        assert_eq!(formats.bind_with(&rules, &patience).unwrap_err(), FormatError::GivenUp);
    }
}

#[test]
fn excluded_bounds_and_decimal_steps_are_kept_exactly() {
    let allows = |schema: &Value, text: &str| {
        let mut bound = bind(&Format::JsonSchema(schema.clone())).unwrap();
        let fits = text.bytes().all(|byte| {
            let is_next = allowed(&mut bound).contains(&u32::from(byte));
            is_next && bound.accept(u32::from(byte)).is_ok()
        });
        fits && allowed(&mut bound).contains(&tokenizer().end_tokens()[0])
    };
    for (schema, good, bad) in [
        (json!({ "exclusiveMinimum": 0, "maximum": 0.5 }), &["0.5", "0.1"][..], &["0", "0.0"][..]),
        (json!({ "exclusiveMinimum": 3, "maximum": 3.5 }), &["3.2", "3.5"], &["3", "3.0", "3.6"]),
        (json!({ "minimum": -0.5, "exclusiveMaximum": 0 }), &["-0.5", "-0.2"], &["0", "-0"]),
        (
            json!({ "minimum": 0.5, "maximum": 90, "multipleOf": 0.1 }),
            &["0.5", "8.1"],
            &["0.4", "90.1"],
        ),
        (json!({ "minimum": 2.5, "exclusiveMaximum": 3 }), &["2.5", "2.9"], &["3", "2.4"]),
        (
            json!({ "allOf": [{ "exclusiveMinimum": 0 }, { "maximum": 0.5 }] }),
            &["0.5", "0.1"],
            &["0", "0.0", "0.6"],
        ),
        (json!({ "minimum": 0.3, "maximum": 0.3, "multipleOf": 0.1 }), &["0.3"], &["0.2", "0.31"]),
        (json!({ "minimum": 0, "maximum": 0.3, "multipleOf": 0.07 }), &["0.07", "0.21"], &["0.3"]),
        (json!({ "minimum": 0.1, "maximum": 1, "multipleOf": 0.05 }), &["0.15", "1"], &["0.12"]),
        (
            json!({ "exclusiveMinimum": 5, "exclusiveMaximum": 7 }),
            &["6", "5.5"],
            &["5", "7", "7.0"],
        ),
    ] {
        let mut schema = schema;
        schema["type"] = json!("number");
        for text in good {
            assert!(allows(&schema, text), "{schema} {text}");
        }
        for text in bad {
            assert!(!allows(&schema, text), "{schema} {text}");
        }
    }
    let whole = json!({ "type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 7 });
    assert!(values(whole).iter().all(|value| *value == 6));
    let grammar = Format::Grammar(
        "start: %json { \"type\": \"number\", \"exclusiveMinimum\": 0, \"maximum\": 0.5 }".into(),
    );
    assert!(texts(&grammar).iter().all(|text| text.parse::<f64>().unwrap() > 0.0));
}

#[test]
fn what_chance_writes_between_bounds_of_chance_fits_them() {
    let (formats, tokenizer) = (formats(), tokenizer());
    let mut chance = Chance(0x5eed);
    let mut kept = 0;
    for _ in 0..150 {
        let mut number = |scale: f64| (chance.below(41) as f64 - 20.0) / scale;
        let scale = [1.0, 2.0, 10.0, 100.0][number(1.0).abs() as usize % 4];
        let (one, other) = (number(scale), number(scale));
        let (lower, upper) = (one.min(other), one.max(other));
        let words = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"];
        let (above, below) = (chance.below(3), chance.below(3));
        let kind = ["number", "integer"][chance.below(2)];
        let mut schema = json!({ "type": kind });
        if above < 2 {
            schema[words[above]] = json!(lower);
        }
        if below < 2 {
            schema[words[2 + below]] = json!(upper);
        }
        let step = [1.0, 0.5, 0.1, 0.05, 3.0][chance.below(5)];
        let has_step = chance.below(2) == 0;
        if has_step {
            schema["multipleOf"] = json!(step);
        }
        let format = Format::JsonSchema(schema.clone());
        let rules = Rules {
            format: Some(&format),
            tools: &[],
            strict: &[],
            calls: CallRule::Auto,
            parallel: true,
        };
        let Ok(bound) = formats.bind(&rules) else {
            // Nothing fits it, which a grid of candidates shows.
            let fits = |n: i32| {
                let value = f64::from(n) / 200.0;
                let is_step = |step: f64| ((value / step).round() - value / step).abs() < 1e-9;
                (above > 1 || value > lower || above == 0 && value == lower)
                    && (below > 1 || value < upper || below == 0 && value == upper)
                    && (!has_step || is_step(step))
                    && (kind == "number" || is_step(1.0))
            };
            assert!(!(-4200..4200).any(fits), "{schema}");
            continue;
        };
        kept += 1;
        for seed in 1..4 {
            let text = written(&mut bound.clone().unwrap(), seed, &tokenizer);
            let value: f64 = text.parse().unwrap();
            assert!(above > 1 || value > lower || above == 0 && value == lower, "{schema}: {text}");
            assert!(below > 1 || value < upper || below == 0 && value == upper, "{schema}: {text}");
            assert!(kind == "number" || value.fract() == 0.0, "{schema}: {text}");
            let steps = value / step;
            let is_near = (steps - steps.round()).abs() <= 1e-9 * steps.abs().max(1.0);
            assert!(!has_step || is_near, "{schema}: {text}");
        }
    }
    assert!(kept > 60, "{kept}");
}

#[test]
fn ordinary_schemas_of_pydantic_and_zod_are_kept() {
    let mail = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$";
    let schema = json!({ "type": "object", "additionalProperties": false,
        "required": ["url", "mail", "names", "tags", "day", "kind"],
        "properties": {
            "url": { "format": "uri", "minLength": 1, "maxLength": 2083, "type": "string" },
            "mail": { "type": "string", "format": "email", "pattern": mail },
            "names": { "type": "object", "maxProperties": 2, "additionalProperties": { "type": "null" },
                "propertyNames": { "type": "string" } },
            "tags": { "type": "array", "items": { "type": "boolean" }, "maxItems": 3, "uniqueItems": true },
            "day": { "type": "string", "format": "date" },
            "kind": { "type": "string", "format": "color", "enum": ["red"] },
        } });
    let bound = bind(&Format::JsonSchema(schema.clone())).unwrap();
    let told = |place: &str| Unkept { tool: None, place: place.into() };
    assert_eq!(
        bound.unkept(),
        [told(".properties.tags.uniqueItems"), told(".properties.kind.format")]
    );
    for value in values(schema) {
        let mail = value["mail"].as_str().unwrap();
        assert!(mail.contains('@') && !mail.starts_with('.') && !mail.contains(".."), "{mail}");
        assert!(value["url"].as_str().unwrap().contains(':'));
        assert_eq!(value["day"].as_str().unwrap().len(), 10);
        assert_eq!(value["kind"], "red");
    }
}
