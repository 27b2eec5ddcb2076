//! Calls that are bound, read back by the parser.

use super::*;

fn weather() -> ToolSpec {
    ToolSpec::new(
        "get_weather",
        json!({
            "type": "object",
            "properties": {
                "city": { "type": "string" },
                "days": { "type": "integer", "minimum": 1, "maximum": 14 },
                "unit": { "enum": ["C", "F"] },
                "flag": { "type": "boolean" },
                "points": { "type": "array", "maxItems": 2, "items": { "$ref": "#/$defs/point" } },
                "code": { "type": "string", "pattern": "^[a-z]{2}[0-9]+$", "maxLength": 3 },
                "note": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
                "level": { "anyOf": [{ "const": "low" }, { "type": "null" }] },
            },
            "required": ["city", "days", "unit", "points", "code"],
            "$defs": { "point": { "type": "object", "additionalProperties": false,
                "properties": { "x": { "$ref": "#/$defs/degrees" }, "y": { "$ref": "#/$defs/degrees" } },
                "required": ["x", "y"] },
                "degrees": { "type": "number", "minimum": -180, "maximum": 180 } },
        }),
    )
}

fn is_weather(arguments: &Value) -> bool {
    let is_number = |value: &Value| value.is_number();
    arguments["city"].is_string()
        && arguments["days"].as_i64().is_some_and(|days| (1..=14).contains(&days))
        && (arguments["unit"] == "C" || arguments["unit"] == "F")
        && (arguments.get("flag").is_none_or(Value::is_boolean))
        && arguments["points"].as_array().is_some_and(|points| {
            points.len() <= 2 && points.iter().all(|p| is_number(&p["x"]) && is_number(&p["y"]))
        })
        && arguments["code"].as_str().is_some_and(|code| code.len() == 3)
        && arguments.get("level").is_none_or(|level| level.is_null() || level == "low")
        && arguments.get("note").is_none_or(|note| note.is_null() || note.is_string())
}

fn rules(tools: &[ToolSpec], parallel: bool) -> Rules<'_> {
    Rules { format: None, tools, strict: &[], calls: CallRule::Required, parallel }
}

fn parsed(text: &str, tools: &[ToolSpec]) -> Parsed {
    let none: [&str; 0] = [];
    let mut parser = MessageParser::new(Thinking::Absent, tools.to_vec(), &none).unwrap();
    let mut message = Parsed::default();
    parser.push(text).for_each(|event| message.add(&event));
    parser.finish(Ended::StopToken).for_each(|event| message.add(&event));
    message
}

#[test]
fn r62_forced_calls_are_calls_with_arguments_that_fit() {
    let tokenizer = tokenizer();
    let tools = [weather(), ToolSpec::new("now", Value::Null)];
    let formats = formats();
    for parallel in [false, true] {
        let bound = formats.bind(&rules(&tools, parallel)).unwrap().unwrap();
        let mut seen = std::collections::HashSet::new();
        for seed in 1..20 {
            let text = written(&mut bound.clone(), seed, &tokenizer);
            let message = parsed(&text, &tools);
            assert_eq!(message.content, "", "{text}");
            assert!(!message.tool_calls.is_empty(), "{text}");
            assert!(parallel || message.tool_calls.len() == 1, "{text}");
            assert_eq!(message.unfinished, None);
            for call in &message.tool_calls {
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                let fits = match call.name.as_str() {
                    "now" => arguments == json!({}),
                    _ => is_weather(&arguments),
                };
                assert!(fits, "{text}\n{arguments}");
                seen.insert(call.name.clone());
            }
        }
        assert_eq!(seen.len(), 2, "both tools are called");
    }
    let one = formats.bind(&rules(&tools[..1], false)).unwrap().unwrap();
    let text = written(&mut one.clone(), 5, &tokenizer);
    assert!(text.starts_with("<tool_call>\n<function=get_weather>\n<parameter=city>\n"), "{text}");
}

#[test]
fn tools_of_free_parameters_take_any() {
    let tokenizer = tokenizer();
    let whole = json!({ "additionalProperties": { "type": "integer" } });
    let tools = [ToolSpec::new("set", json!({ "type": "object" })), ToolSpec::new("sum", whole)];
    let bound = formats().bind(&rules(&tools, false)).unwrap().unwrap();
    for seed in 1..8 {
        let text = written(&mut bound.clone(), seed, &tokenizer);
        let message = parsed(&text, &tools);
        let arguments: Value = serde_json::from_str(&message.tool_calls[0].arguments).unwrap();
        let mut values = arguments.as_object().unwrap().values();
        match message.tool_calls[0].name.as_str() {
            "set" => assert!(values.all(Value::is_string), "{arguments}"),
            _ => assert!(values.all(Value::is_number), "{arguments}"),
        }
    }
}

/// Feeds a text that must be allowed, byte by byte but for control tokens.
fn feed(constraint: &mut dyn Constraint, text: &str, tokenizer: &Tokenizer) {
    for id in tokenizer.encode(text, lily_text::Markers::Control).unwrap() {
        let next = allowed(constraint);
        assert!(next.contains(&id), "{id} of {text:?} is not among {next:?}");
        constraint.accept(id).unwrap();
    }
}

#[test]
fn a_text_value_may_hold_tags_but_not_its_own_end() {
    let tokenizer = tokenizer();
    let tools = [ToolSpec::new("write", json!({ "properties": { "text": { "type": "string" } } }))];
    let mut bound = formats().bind(&rules(&tools, false)).unwrap().unwrap();
    let head = "<tool_call>\n<function=write>\n<parameter=text>\n";
    feed(&mut bound, head, &tokenizer);
    let text = "a < b\r\n</function>\n</paramete>\n<parameter=y>\n ";
    feed(&mut bound, text, &tokenizer);
    assert!(!allowed(&mut bound).contains(&tokenizer.id_of("</tool_call>").unwrap()));
    // Wherever the tag stands, it is the end.
    let mut inside = bound.clone();
    feed(&mut inside, "</parameter", &tokenizer);
    assert_eq!(allowed(&mut inside), [u32::from(b'>')]);
    let mut inside = bound.clone();
    feed(&mut inside, "<tool_ca</tool_call<<", &tokenizer);
    feed(&mut inside, "tool_call", &tokenizer);
    assert!(!allowed(&mut inside).contains(&u32::from(b'>')));
    feed(&mut bound, "\n</parameter>\n", &tokenizer);
    assert_eq!(allowed(&mut bound), [u32::from(b'<')]);
    feed(&mut bound, "</function>\n</tool_call>", &tokenizer);
    let whole = format!("{head}{text}\n</parameter>\n</function>\n</tool_call>");
    let arguments = &parsed(&whole, &tools).tool_calls[0].arguments;
    assert_eq!(*arguments, json!({ "text": text }).to_string());
}

#[test]
fn strict_calls_are_bound_once_they_begin_and_the_rest_is_free() {
    let tokenizer = tokenizer();
    let tools = [weather()];
    let auto = Rules { strict: &[true], calls: CallRule::Auto, ..rules(&tools, true) };
    let mut bound = formats().bind(&auto).unwrap().unwrap();
    assert!(!bound.binds_answer());
    assert_eq!(allowed(&mut bound).len(), VOCAB);
    // In the middle of a line it is no call.
    feed(&mut bound, "Look: <tool_call> and\n<tool_call>", &tokenizer);
    assert_eq!(allowed(&mut bound), [u32::from(b'\n')]);
    feed(
        &mut bound,
        "\n<function=get_weather>\n<parameter=city>\nKöln\n</parameter>\n",
        &tokenizer,
    );
    feed(&mut bound, "<parameter=days>\n14\n</parameter>\n<parameter=unit>\n", &tokenizer);
    assert_eq!(allowed(&mut bound), b"CF".map(u32::from));
    feed(&mut bound, "F\n</parameter>\n<parameter=points>\n[]\n</parameter>\n", &tokenizer);
    feed(&mut bound, "<parameter=code>\nab1\n</parameter>\n</function>\n</tool_call>", &tokenizer);
    assert_eq!(allowed(&mut bound).len(), VOCAB);
    // And once more.
    feed(&mut bound, "\n<tool_call>", &tokenizer);
    assert_eq!(allowed(&mut bound), [u32::from(b'\n')]);
    // Without strict tools nothing is bound.
    assert!(formats().bind(&Rules { strict: &[], ..auto }).unwrap().is_none());
}

#[test]
fn with_a_format_the_reply_is_either_calls_or_the_format() {
    let tokenizer = tokenizer();
    let tools = [ToolSpec::new("now", Value::Null)];
    let format = Format::JsonSchema(json!({ "enum": [1, 2] }));
    let both = Rules { format: Some(&format), calls: CallRule::Auto, ..rules(&tools, true) };
    let bound = formats().bind(&both).unwrap().unwrap();
    assert!(bound.binds_answer());
    let call = tokenizer.id_of("<tool_call>").unwrap();
    assert_eq!(allowed(&mut bound.clone()), [u32::from(b'1'), u32::from(b'2'), call]);
    let mut calls = bound.clone();
    let text = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    feed(&mut calls, &format!("{text}\n{text}"), &tokenizer);
    assert!(allowed(&mut calls).contains(&tokenizer.end_tokens()[0]));
    let mut answer = bound.clone();
    feed(&mut answer, "2", &tokenizer);
    assert!(!allowed(&mut answer).contains(&call));
}

#[test]
fn r63_a_tool_of_many_optional_fields_is_bound() {
    let fields = (0..48).map(|i| (format!("field_{i}"), json!({ "type": ["number", "null"] })));
    let fields: serde_json::Map<String, Value> = fields.collect();
    let tools = [ToolSpec::new("log_food", json!({ "type": "object", "properties": fields }))];
    let tokenizer = tokenizer();
    let mut bound = formats().bind(&rules(&tools, true)).unwrap().unwrap();
    let call = "<tool_call>\n<function=log_food>\n<parameter=field_3>\n1.5\n</parameter>\n\
                <parameter=field_47>\nnull\n</parameter>\n</function>\n</tool_call>";
    feed(&mut bound, &format!("{call}\n{call}"), &tokenizer);
    assert!(allowed(&mut bound).contains(&tokenizer.end_tokens()[0]));
}

#[test]
fn tools_that_cannot_be_called_are_named() {
    for (tool, place) in [
        (ToolSpec::new("x".repeat(200), Value::Null), ""),
        (
            ToolSpec::new("t", json!({ "properties": { "a>b": {} }, "required": ["a>b"] })),
            ".properties.a>b",
        ),
        (
            ToolSpec::new(
                "t",
                json!({ "properties": { "a": { "enum": ["</parameter>"] } }, "required": ["a"] }),
            ),
            ".properties.a",
        ),
        (
            ToolSpec::new(
                "t",
                json!({ "properties": { "a": { "type": "string", "minLength": 3, "pattern": "^..$" } },
                    "required": ["a"] }),
            ),
            ".properties.a",
        ),
        (
            ToolSpec::new(
                "t",
                json!({ "properties": { "a": { "type": "integer", "minimum": 2, "maximum": 1 } },
                    "required": ["a"] }),
            ),
            ".properties.a",
        ),
        (
            ToolSpec::new(
                "t",
                json!({ "allOf": [{ "properties": { "a": {} } }], "additionalProperties": false,
                    "required": ["a"] }),
            ),
            ".allOf[0].properties.a",
        ),
    ] {
        let tools = [ToolSpec::new("fine", Value::Null), tool];
        match formats().bind(&rules(&tools, true)) {
            Err(FormatError::Tool { tool: 1, place: found, reason }) => {
                assert_eq!(found, place);
                // The text of the grammar is nobody's but this module's.
                for inner in ["TEXT", "p1x", "v1x", "%json", "x-guidance", "start:"] {
                    assert!(!reason.contains(inner), "{reason}");
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_a_call_can_never_finish_or_write_is_refused_at_the_start() {
    let formats = formats();
    let node = json!({ "type": "object", "required": ["next"],
        "properties": { "next": { "$ref": "#/$defs/node" } } });
    let with = |schema: Value, required: &[&str]| {
        json!({ "type": "object", "properties": { "a": schema }, "required": required,
            "$defs": { "node": node } })
    };
    let text = |pattern: &str| json!({ "type": "string", "pattern": pattern });
    for (schema, place) in [
        (
            json!({ "type": "object", "properties": { "a": { "$ref": "#" } }, "required": ["a"] }),
            ".properties.a",
        ),
        (with(json!({ "$ref": "#/$defs/node" }), &["a"]), ".properties.a"),
        (
            with(
                json!({ "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/node" } }),
                &["a"],
            ),
            ".properties.a",
        ),
        (
            json!({ "additionalProperties": node, "$defs": { "node": node } }),
            ".additionalProperties",
        ),
        (with(text("^</parameter>$"), &["a"]), ".properties.a"),
        (with(text("^.*<tool_call>$"), &["a"]), ".properties.a"),
        (with(json!({ "allOf": [text("^<"), text("^</parameter>x*$")] }), &["a"]), ".properties.a"),
    ] {
        let tools = [ToolSpec::new("t", schema)];
        for strict in [false, true] {
            match formats.bind(&Rules { strict: &[strict], ..rules(&tools, true) }) {
                Err(FormatError::Tool { tool: 0, place: found, reason }) => {
                    // A strict one is refused for the first part of it, which may be the whole.
                    assert!(place.starts_with(&found) || strict, "{found} for {place}: {reason}");
                }
                other => panic!("{tools:?}: {other:?}"),
            }
        }
        // Also where the model decides.
        let auto = Rules { strict: &[true], calls: CallRule::Auto, ..rules(&tools, true) };
        assert!(matches!(formats.bind(&auto), Err(FormatError::Tool { tool: 0, .. })), "{tools:?}");
    }
    // What may be left out is left out.
    let tools = [ToolSpec::new("t", with(text("^</parameter>$"), &[]))];
    let mut bound =
        formats.bind(&Rules { strict: &[true], ..rules(&tools, false) }).unwrap().unwrap();
    feed(&mut bound, "<tool_call>\n<function=t>\n</function>\n</tool_call>", &tokenizer());
    let tree = json!({ "type": "object", "required": ["all"], "properties": {
        "all": { "type": "array", "items": { "$ref": "#" } } } });
    let tools = [ToolSpec::new("t", tree)];
    assert!(formats.bind(&Rules { strict: &[true], ..rules(&tools, true) }).is_ok());
}

#[test]
fn many_tools_are_too_much_together_although_each_is_not() {
    let values = json!({ "properties": { "a": { "enum": (0..9_000).collect::<Vec<_>>() } } });
    let tools: Vec<_> = (0..6).map(|i| ToolSpec::new(format!("t{i}"), values.clone())).collect();
    match formats().bind(&rules(&tools, true)) {
        Err(FormatError::Tool { tool: 5, place, reason }) => {
            assert!(place.is_empty() && reason.contains("at most 50000"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_malformed_property_of_a_strict_tool_is_named() {
    let formats = formats();
    for (property, place) in [
        (json!("string"), ".properties.a"),
        (json!(5), ".properties.a"),
        (json!([]), ".properties.a"),
        (json!({ "type": "strin" }), ".properties.a.type"),
        (json!({ "type": "string", "minLength": "3" }), ".properties.a.minLength"),
        (json!({ "type": "string", "enum": "x" }), ".properties.a.enum"),
        (json!({ "type": "array", "items": { "type": 5 } }), ".properties.a.items.type"),
        (json!({ "type": "integer", "const": 9_007_199_254_740_993_u64 }), ".properties.a.const"),
        (
            json!({ "type": "object", "minProperties": 2, "additionalProperties": true }),
            ".properties.a.minProperties",
        ),
    ] {
        let schema = json!({ "type": "object", "properties": { "a": property } });
        let tools = [ToolSpec::new("fine", Value::Null), ToolSpec::new("t", schema)];
        for calls in [CallRule::Auto, CallRule::Required] {
            let strict = Rules { strict: &[false, true], calls, ..rules(&tools, true) };
            match formats.bind(&strict) {
                Err(FormatError::Tool { tool: 1, place: found, reason }) => {
                    assert_eq!(found, place);
                    assert!(!reason.is_empty());
                }
                other => panic!("{place}: {other:?}"),
            }
        }
        // Of another tool it is listed.
        let bound = formats.bind(&rules(&tools, true)).unwrap().unwrap();
        let unkept: Vec<&str> = bound.unkept().iter().map(|one| one.place.as_str()).collect();
        assert_eq!(unkept, [place]);
    }
}

#[test]
fn a_value_of_several_types_is_read_as_one_that_its_schema_allows() {
    let (tokenizer, formats) = (tokenizer(), formats());
    for (schema, values) in [
        (json!({ "type": ["string", "integer"], "const": "5" }), vec![json!("5")]),
        (json!({ "type": ["string", "null"], "enum": ["null"] }), vec![json!("null")]),
        (
            json!({ "type": ["string", "boolean"], "enum": ["True", "x"] }),
            vec![json!("True"), json!("x")],
        ),
        (json!({ "anyOf": [{ "const": "5" }, { "const": 5 }] }), vec![json!(5)]),
        (json!({ "enum": ["5", 7, "x"] }), vec![json!(7), json!("x")]),
        (
            json!({ "type": ["string", "number"], "enum": ["1.5", 5, true] }),
            vec![json!("1.5"), json!(5)],
        ),
    ] {
        for seed in 1..8 {
            let value = argument(&schema, seed, &tokenizer, &formats);
            assert!(values.contains(&value), "{schema}: {value}");
        }
    }
    // Both types stay possible here, and no text means this one.
    let only = json!({ "properties": { "a": { "enum": ["5", "6", 7] } }, "required": ["a"] });
    let tools = [ToolSpec::new("t", only)];
    let mut bound = formats.bind(&rules(&tools, false)).unwrap().unwrap();
    feed(&mut bound, "<tool_call>\n<function=t>\n<parameter=a>\n", &tokenizer);
    assert_eq!(allowed(&mut bound), [u32::from(b'7')]);
}

/// The one argument of a call that is written by chance.
fn argument(schema: &Value, seed: u64, tokenizer: &Tokenizer, formats: &Formats) -> Value {
    let tool = json!({ "properties": { "a": schema }, "required": ["a"] });
    let tools = [ToolSpec::new("t", tool)];
    let bound = formats.bind(&rules(&tools, false)).unwrap().unwrap();
    assert_eq!(bound.unkept(), [], "{schema}");
    let text = written(&mut bound.clone(), seed, tokenizer);
    let arguments = parsed(&text, &tools).tool_calls[0].arguments.clone();
    serde_json::from_str::<Value>(&arguments).unwrap()["a"].clone()
}

#[test]
fn texts_of_a_call_keep_their_format_and_what_stands_beside_a_list() {
    type Fits = fn(&str) -> bool;
    let (tokenizer, formats) = (tokenizer(), formats());
    let day: Fits = |text| text.len() == 10 && text.split('-').count() == 3;
    for (schema, fits) in [
        (json!({ "type": "string", "format": "date" }), day),
        (json!({ "type": "string", "format": "ipv4", "maxLength": 9 }), |text| {
            text.len() <= 9 && text.parse::<std::net::Ipv4Addr>().is_ok()
        }),
        (json!({ "allOf": [{ "type": "string" }, { "maxLength": 2 }], "minLength": 2 }), |text| {
            text.chars().count() == 2
        }),
        (json!({ "enum": ["aa", "b", "</parameter>", "cc"], "minLength": 2 }), |text| {
            ["aa", "cc"].contains(&text)
        }),
        (json!({ "type": "string", "enum": ["1.5", "x", 7], "pattern": "^[a-z]" }), |text| {
            text == "x"
        }),
        (
            json!({ "anyOf": [{ "const": "2024-01-01" }, { "const": "no" }], "format": "date" }),
            |text| text == "2024-01-01",
        ),
    ] {
        for seed in 1..5 {
            let value = argument(&schema, seed, &tokenizer, &formats);
            assert!(value.as_str().is_some_and(fits), "{schema}: {value}");
        }
    }
    // Or nothing at all.
    let optional = json!({ "anyOf": [{ "type": "string", "format": "date" }, { "type": "null" }] });
    let mut seen = std::collections::HashSet::new();
    for seed in 1..30 {
        let value = argument(&optional, seed, &tokenizer, &formats);
        assert!(value.is_null() || value.as_str().is_some_and(day), "{value}");
        seen.insert(value.is_null());
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn what_a_call_does_not_keep_is_listed_and_refused_for_a_strict_tool() {
    let formats = formats();
    let root = |more: Value| {
        let mut schema = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    let of = |schema: Value| json!({ "properties": { "a": schema } });
    for (schema, place) in [
        (root(json!({ "not": { "required": ["a"] } })), ".not"),
        (root(json!({ "dependentRequired": { "a": ["b"] } })), ".dependentRequired"),
        (root(json!({ "patternProperties": { "^b": {} } })), ".patternProperties"),
        (root(json!({ "minProperties": 1 })), ".minProperties"),
        (root(json!({ "maxProperties": 0 })), ".maxProperties"),
        (root(json!({ "required": ["b"] })), ".required"),
        (root(json!({ "if": {}, "then": {} })), ".if"),
        (root(json!({ "anyOf": [{ "required": ["a"] }] })), ".anyOf"),
        (
            root(json!({ "allOf": [{ "properties": { "a": { "maxLength": 1 } } }] })),
            ".allOf[0].properties.a",
        ),
        (root(json!({ "$ref": "#/$defs/none" })), ".$ref"),
        (json!({ "type": "object", "minProperties": 1 }), ".minProperties"),
        (of(json!({ "type": "string", "pattern": "x(?=y)" })), ".properties.a.pattern"),
        (of(json!({ "type": "string", "pattern": "x\\" })), ".properties.a.pattern"),
        (of(json!({ "type": "string", "not": { "const": "x" } })), ".properties.a.not"),
        (
            of(json!({ "type": "string", "anyOf": [{ "maxLength": 1 }, { "minLength": 3 }] })),
            ".properties.a.anyOf",
        ),
        (of(json!({ "type": ["string", "integer"], "minimum": 3 })), ".properties.a.minimum"),
        (of(json!({ "enum": ["x", "y"], "not": { "const": "x" } })), ".properties.a.not"),
        (
            of(json!({ "enum": (0..2000).map(|n| n.to_string()).collect::<Vec<_>>() })),
            ".properties.a.enum",
        ),
        (of(json!({ "$ref": "#/x/y" })), ".properties.a.$ref"),
        (of(json!({ "type": "array", "contains": {} })), ".properties.a.contains"),
        (
            of(json!({ "type": "string", "oneOf": [{ "type": "string" }, { "title": "x" }] })),
            ".properties.a.oneOf",
        ),
        (
            of(json!({ "type": "array", "items": { "type": "object", "not": {} } })),
            ".properties.a.items.not",
        ),
    ] {
        let tools = [ToolSpec::new("t", schema)];
        let bound = formats.bind(&rules(&tools, true));
        let bound = bound.unwrap_or_else(|error| panic!("{place}: {error}")).unwrap();
        let unkept: Vec<&str> = bound.unkept().iter().map(|one| one.place.as_str()).collect();
        assert_eq!(unkept, [place], "{tools:?}");
        match formats.bind(&Rules { strict: &[true], ..rules(&tools, true) }) {
            Err(FormatError::Tool { tool: 0, place: found, .. }) => {
                assert!(place.starts_with(&found), "{found} for {place}");
            }
            other => panic!("{place}: {other:?}"),
        }
    }
    // Notes are listed too, but nothing is refused for them.
    for (schema, place) in [
        (of(json!({ "type": "string", "format": "iri" })), ".properties.a.format"),
        (of(json!({ "type": "array", "uniqueItems": true })), ".properties.a.uniqueItems"),
    ] {
        let tools = [ToolSpec::new("t", schema)];
        for (strict, calls) in
            [(false, CallRule::Required), (true, CallRule::Required), (true, CallRule::Auto)]
        {
            let bound = formats.bind(&Rules { strict: &[strict], calls, ..rules(&tools, true) });
            let unkept = Unkept { tool: Some(0), place: place.into() };
            assert_eq!(bound.unwrap().unwrap().unkept(), [unkept]);
        }
    }
    // What says nothing about a text, or is kept, is not listed.
    let quiet = json!({ "type": "object", "title": "x", "additionalProperties": true, "minProperties": 1,
        "required": ["a"], "properties": { "a": { "type": "string", "minimum": 3, "description": "d",
            "default": "x", "items": {} }, "b": { "type": ["array"], "items": { "format": "date" } } } });
    let tools = [ToolSpec::new("t", quiet)];
    assert_eq!(formats.bind(&rules(&tools, true)).unwrap().unwrap().unkept(), []);
}

#[test]
fn a_part_that_is_not_kept_is_named_where_it_is_referred_to() {
    let schema = json!({ "properties": { "a": { "type": "array", "items": { "$ref": "#/$defs/x" } } },
        "$defs": { "x": { "type": "object", "not": {} } } });
    let tools = [ToolSpec::new("t", schema)];
    let bound = formats().bind(&rules(&tools, true)).unwrap().unwrap();
    assert_eq!(bound.unkept()[0].place, ".properties.a.items");
}

#[test]
fn what_cannot_be_kept_inside_a_value_is_listed_and_the_rest_is_kept() {
    let (tokenizer, formats) = (tokenizer(), formats());
    let object = |schema: Value| {
        json!({ "type": "object", "additionalProperties": false,
        "required": ["x", "y"], "properties": { "x": schema, "y": { "const": 7 } } })
    };
    for (schema, place) in [
        (json!({ "type": "object", "required": 1 }), ".required"),
        (json!({ "type": "integer", "multipleOf": 999_983 }), ""),
        (json!({ "type": "integer", "minimum": 2, "maximum": 1 }), ""),
        (json!({ "type": "string", "pattern": "(" }), ""),
        (json!({ "type": "string", "pattern": "a(?=b)" }), ".pattern"),
        (json!({ "$ref": "#/$defs/none" }), ""),
        (json!({ "not": {} }), ".not"),
    ] {
        let tool = json!({ "properties": { "a": object(schema) }, "required": ["a"] });
        let tools = [ToolSpec::new("t", tool)];
        let bound = formats.bind(&rules(&tools, false));
        let bound = bound.unwrap_or_else(|error| panic!("{place}: {error}")).unwrap();
        let places: Vec<&str> = bound.unkept().iter().map(|one| one.place.as_str()).collect();
        assert_eq!(places, [format!(".properties.a.properties.x{place}")]);
        let text = written(&mut bound.clone(), 3, &tokenizer);
        let arguments: Value =
            serde_json::from_str(&parsed(&text, &tools).tool_calls[0].arguments).unwrap();
        assert_eq!(arguments["a"]["y"], 7, "{text}");
        assert!(formats.bind(&Rules { strict: &[true], ..rules(&tools, true) }).is_err());
    }
}

#[test]
fn endless_parts_of_a_value_are_never_begun() {
    let tokenizer = tokenizer();
    let endless = json!({ "type": "object", "minProperties": 1,
        "additionalProperties": { "$ref": "#/$defs/e" } });
    let tool = json!({ "required": ["a"], "$defs": { "e": endless }, "properties": {
        "a": { "type": "array", "minItems": 1, "items": { "type": "object",
            "properties": { "no": { "$ref": "#/$defs/e" }, "yes": { "const": 1 } },
            "additionalProperties": false } },
        "b": { "$ref": "#/$defs/e" } } });
    let tools = [ToolSpec::new("t", tool)];
    let bound = formats().bind(&rules(&tools, false)).unwrap().unwrap();
    for seed in 1..8 {
        let text = written(&mut bound.clone(), seed, &tokenizer);
        assert!(!text.contains("no") && !text.contains("=b>"), "{text}");
    }
}

#[test]
fn long_texts_with_bounds_formats_and_patterns_are_written_to_their_end() {
    let (tokenizer, formats) = (tokenizer(), formats());
    let long = |begin: &str, length: usize| begin.to_owned() + &"a".repeat(length - begin.len());
    for (schema, text) in [
        (json!({ "minLength": 1, "maxLength": 1000 }), long("<tool é", 1000)),
        (json!({ "minLength": 500, "maxLength": 4000 }), long("x\n\n", 501)),
        (json!({ "format": "uri", "minLength": 1, "maxLength": 2083 }), long("https://a.b/", 2083)),
        (json!({ "pattern": "[a-z]+", "maxLength": 1000 }), long("1", 1000)),
        (json!({ "pattern": "^\\S(.*\\S)?$", "maxLength": 2000 }), long("1 ", 2000)),
    ] {
        let mut schema = schema;
        schema["type"] = json!("string");
        let tool = json!({ "properties": { "a": schema }, "required": ["a"] });
        let tools = [ToolSpec::new("t", tool)];
        let bound = formats.bind(&Rules { strict: &[true], ..rules(&tools, false) });
        let mut bound = bound.unwrap_or_else(|error| panic!("{tools:?}: {error}")).unwrap();
        let call = format!(
            "<tool_call>\n<function=t>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
        );
        feed(&mut bound, &call, &tokenizer);
        assert!(allowed(&mut bound).contains(&tokenizer.end_tokens()[0]));
    }
}

#[test]
fn texts_keep_their_bounds_beside_values_of_other_types() {
    let (tokenizer, formats) = (tokenizer(), formats());
    let date = json!({ "type": "string", "format": "date" });
    let decimal = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$";
    for schema in [
        json!({ "type": ["string", "number"], "maxLength": 10, "minLength": 10 }),
        json!({ "anyOf": [date, { "type": "integer" }, { "type": "boolean" }] }),
        json!({ "oneOf": [{ "type": "number" }, date] }),
        json!({ "anyOf": [{ "type": "number" }, { "type": "string", "pattern": decimal }] }),
        json!({ "anyOf": [{ "type": "array" }, date] }),
    ] {
        let mut kinds = std::collections::HashSet::new();
        for seed in 1..30 {
            let value = argument(&schema, seed, &tokenizer, &formats);
            let fits = match value.as_str() {
                // A number is read as one, unless it is written in a way of its own.
                Some(text) if schema.to_string().contains("pattern") => text.parse::<f64>().is_ok(),
                Some(text) => text.chars().count() == 10,
                None => value.is_number() || value.is_boolean() || value.is_array(),
            };
            assert!(fits, "{schema}: {value}");
            kinds.insert(crate::json::kind(&value));
        }
        assert!(kinds.len() > 1 || !schema.to_string().contains("date"), "{schema}: {kinds:?}");
    }
}

#[test]
fn a_text_whose_bounds_are_too_much_work_is_free_or_refused_by_its_place() {
    let formats = formats();
    let text =
        json!({ "type": "string", "minLength": 9_000, "pattern": "^(?=.*a)(?=.*b)(?=.*c)(?=.*d)" });
    let tool = json!({ "properties": { "a": { "type": "string", "format": "date" }, "b": text } });
    let tools = [ToolSpec::new("t", tool)];
    let bound = formats.bind(&rules(&tools, true)).unwrap().unwrap();
    assert_eq!(bound.unkept(), [Unkept { tool: Some(0), place: ".properties.b".into() }]);
    match formats.bind(&Rules { strict: &[true], ..rules(&tools, true) }) {
        Err(FormatError::Tool { tool: 0, place, reason }) => {
            assert_eq!((place.as_str(), reason.as_str()), (".properties.b", TOO_COMPLEX));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_value_that_two_members_of_one_of_allow_is_not_written() {
    let (tokenizer, formats) = (tokenizer(), formats());
    let lists = json!({ "oneOf": [{ "enum": ["a", "b"] }, { "enum": ["b", "c", "c"] }] });
    let date = json!({ "oneOf": [{ "type": "string", "format": "date" }, { "type": "null" }] });
    for seed in 1..10 {
        let value = argument(&lists, seed, &tokenizer, &formats);
        assert!(value == "a" || value == "c", "{value}");
        let value = argument(&date, seed, &tokenizer, &formats);
        assert!(value.is_null() || value.as_str().is_some_and(|text| text.len() == 10), "{value}");
    }
}

#[test]
fn names_that_a_closed_part_does_not_have_are_left_out() {
    let member = json!({ "properties": { "a": {}, "b": {} }, "additionalProperties": false });
    for (schema, names) in [
        (json!({ "allOf": [member], "properties": { "c": {} } }), &["a", "b"][..]),
        (
            json!({ "allOf": [member], "properties": { "b": {} }, "additionalProperties": false }),
            &["b"],
        ),
        (json!({ "allOf": [member], "additionalProperties": false }), &[]),
        (
            json!({ "$ref": "#/$defs/m", "additionalProperties": false, "properties": { "a": {} },
                "$defs": { "m": member } }),
            &["a"],
        ),
        (json!({ "allOf": [member], "unevaluatedProperties": false }), &["a", "b"]),
    ] {
        let tools = [ToolSpec::new("t", schema)];
        let bound =
            formats().bind(&Rules { strict: &[true], ..rules(&tools, false) }).unwrap().unwrap();
        for name in ["a", "b", "c"] {
            let mut call = bound.clone();
            feed(&mut call, "<tool_call>\n<function=t>\n<", &tokenizer());
            let is_there = match allowed(&mut call).contains(&u32::from(b'p')) {
                false => false,
                true => {
                    feed(&mut call, "parameter=", &tokenizer());
                    allowed(&mut call).contains(&u32::from(name.as_bytes()[0]))
                }
            };
            assert_eq!(is_there, names.contains(&name), "{tools:?} {name}");
        }
    }
}
