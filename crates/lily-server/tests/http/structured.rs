//! Formats of answers. The model is random, so whatever fits a format is the format's doing. The
//! numbers tell the reports of users of other servers apart.

// A failure in a helper fails the test.
#![allow(clippy::unwrap_used)]

use crate::common::{
    Served, THOUGHT_END, TURN_END, ask, device, going_on, serve, serve_script, serve_sessions,
};
use lily_server::Settings;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

type Fits = fn(&Value) -> bool;
type TextFits = fn(&str) -> bool;

fn is_short(value: &Value, longest: usize) -> bool {
    value.as_str().is_some_and(|text| text.chars().count() <= longest)
}

fn is_in(value: &Value, least: i64, most: i64) -> bool {
    value.as_i64().is_some_and(|number| (least..=most).contains(&number))
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Schemas whose values have an end, and what fits them.
fn schemas() -> Vec<(Value, Fits)> {
    let text = json!({ "type": "string", "maxLength": 6 });
    let point = json!({ "type": "object", "additionalProperties": false, "required": ["x", "y"],
        "properties": { "x": { "type": "integer", "minimum": -9, "maximum": 9 },
            "y": { "$ref": "#/$defs/flag" } } });
    vec![
        (
            json!({ "type": "object", "additionalProperties": false, "required": ["answer"],
                "properties": { "answer": text } }),
            |value| keys(value) == ["answer"] && is_short(&value["answer"], 6),
        ),
        (json!({ "enum": ["red", "green", 3, null] }), |value| {
            ["red", "green"].contains(&value.as_str().unwrap_or(""))
                || *value == 3
                || value.is_null()
        }),
        (
            json!({ "type": "array", "minItems": 2, "maxItems": 3, "items": point,
                "$defs": { "flag": { "type": ["boolean", "null"] } } }),
            |value| {
                let items = value.as_array().unwrap();
                let is_point = |p: &Value| {
                    keys(p) == ["x", "y"] && is_in(&p["x"], -9, 9) && !p["y"].is_number()
                };
                (2..=3).contains(&items.len()) && items.iter().all(is_point)
            },
        ),
        (
            json!({ "anyOf": [
                { "type": "object", "additionalProperties": false, "required": ["kind", "n"],
                    "properties": { "kind": { "const": "a" },
                        "n": { "type": "integer", "minimum": 0, "maximum": 99 } } },
                { "type": "object", "additionalProperties": false, "required": ["kind"],
                    "properties": { "kind": { "const": "b" },
                        "s": { "type": "string", "pattern": "^[a-f]{4}$" } } },
            ] }),
            |value| match value["kind"].as_str() {
                Some("a") => is_in(&value["n"], 0, 99),
                _ => value["kind"] == "b" && value.get("s").is_none_or(|s| is_short(s, 4)),
            },
        ),
    ]
}

fn with_schema(schema: &Value) -> Value {
    json!({ "response_format": { "type": "json_schema",
        "json_schema": { "name": "x", "strict": true, "schema": schema } } })
}

fn joined(first: &Value, second: Value) -> Value {
    let mut both = first.clone();
    both.as_object_mut().unwrap().extend(second.as_object().unwrap().clone());
    both
}

/// Joined texts of a field in a stream's chunks.
fn streamed(server: &Served, body: &Value, field: &str) -> String {
    let chunks = server.stream_chat(body).rest();
    let delta =
        |chunk: &Value| Some(chunk["choices"].get(0)?["delta"][field].as_str()?.to_string());
    chunks.iter().filter_map(delta).collect()
}

/// The answer of a chat that must end by itself, streamed and whole.
fn answer(server: &Served, body: &Value) -> String {
    let choice = server.chat(body)["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "stop", "{choice}");
    let content = choice["message"]["content"].as_str().unwrap().to_owned();
    assert_eq!(streamed(server, body, "content"), content);
    content
}

#[test]
fn r52_answers_fit_their_schema_without_thinking() {
    let server = serve(Settings::default());
    for (schema, fits) in schemas() {
        for (temperature, seed) in [(0, 0), (1, 1), (1, 2), (1, 3)] {
            let off = json!({ "enable_thinking": false, "temperature": temperature, "seed": seed });
            let text = answer(&server, &ask(joined(&with_schema(&schema), off)));
            let value: Value = serde_json::from_str(&text).unwrap();
            assert!(fits(&value), "{schema}: {text}");
        }
    }
}

#[test]
fn r51_the_thought_comes_first_and_then_the_schema_binds() {
    let server = serve(Settings::default());
    for (schema, fits) in schemas() {
        for (more, is_thought) in [
            // The turn does not end in the thought, however likely that is.
            (
                json!({ "thinking_budget": 20, "logit_bias": { TURN_END: 100, THOUGHT_END: -100 } }),
                true,
            ),
            (json!({ "logit_bias": { THOUGHT_END: 100 } }), false),
        ] {
            let more = joined(&more, json!({ "temperature": 1, "seed": 7 }));
            let body = ask(joined(&with_schema(&schema), more));
            let reply = server.chat(&body);
            let message = &reply["choices"][0]["message"];
            let thought = message["reasoning_content"].as_str().unwrap_or("");
            assert_eq!(!thought.is_empty(), is_thought, "{reply}");
            let text = answer(&server, &body);
            assert_eq!(message["content"], text);
            let value: Value = serde_json::from_str(&text).unwrap();
            assert!(fits(&value), "{schema}: {text}");
            assert_eq!(streamed(&server, &body, "reasoning_content"), thought);
        }
    }
}

#[test]
fn r51_line_feeds_that_a_format_begins_with_are_of_the_answer() {
    let server = serve(Settings::default());
    let format = json!({ "structured_outputs": { "regex": "\n\n\n[xy]" }, "temperature": 1 });
    for more in [
        json!({ "enable_thinking": false }),
        json!({ "logit_bias": { THOUGHT_END: 100 } }),
        json!({ "thinking_budget": 3, "logit_bias": { THOUGHT_END: -100 } }),
    ] {
        let text = answer(&server, &ask(joined(&format, more)));
        assert!(["\n\n\nx", "\n\n\ny"].contains(&text.as_str()), "{text:?}");
    }
}

#[test]
fn formats_without_an_end_are_refused_before_the_reply_begins() {
    let server = serve(Settings::default());
    let tool = json!({ "type": "function", "function": { "name": "f" } });
    let outputs = |format: Value| json!({ "structured_outputs": format, "stream": true });
    let no_calls = json!({ "tools": [tool], "tool_choice": "none" });
    for (more, param) in [
        (outputs(json!({ "regex": "ab\\" })), "structured_outputs.regex"),
        (outputs(json!({ "regex": "ab[^\\s\\S]" })), "structured_outputs.regex"),
        (
            outputs(json!({ "grammar": "start: \"ab\" A\nA: /x/ & /y/" })),
            "structured_outputs.grammar",
        ),
        (
            outputs(json!({ "grammar": "start: \"a\" <|im_end|> \"b\"" })),
            "structured_outputs.grammar",
        ),
        (
            joined(&no_calls, outputs(json!({ "grammar": "start: <tool_call> /a+/" }))),
            "structured_outputs.grammar",
        ),
        (
            outputs(json!({ "json": { "type": "object", "required": ["a"],
                "properties": { "a": { "$ref": "#" } } } })),
            "structured_outputs.json",
        ),
    ] {
        let reply = server.post(CHAT, &ask(more.clone()));
        assert_eq!(reply.status, 400, "{more}: {}", reply.body);
        assert_eq!(reply.json()["error"]["param"], param);
    }
    // What may be allowed to call may ask for it.
    let free = json!({ "structured_outputs": { "grammar": "start: <tool_call> /a{3}/" } });
    assert_eq!(server.post(CHAT, &ask(free)).status, 200);
}

#[test]
fn r84_json_objects_are_objects() {
    let server = serve(Settings::default());
    // A random model ends no text and no object by itself.
    let bias = json!({ "34": 9, "125": 9, "58": 5 });
    for seed in 0..4 {
        let text = answer(
            &server,
            &ask(json!({
                "response_format": { "type": "json_object" }, "enable_thinking": false,
                "logit_bias": bias, "seed": seed, "temperature": 1,
            })),
        );
        let value: Value = serde_json::from_str(&text).unwrap();
        assert!(value.is_object(), "{text}");
    }
}

/// Formats of the extension, and what fits them.
fn extensions() -> Vec<(Value, TextFits)> {
    let lark = "start: term (\"+\" term){1,3}\nterm: /[1-9][0-9]{0,2}/\n";
    vec![
        (json!({ "regex": "(ab|cd){2}-[0-9]{3}" }), |text| {
            text.len() == 8
                && ["abab", "abcd", "cdab", "cdcd"].contains(&&text[..4])
                && text[5..].bytes().all(|b| b.is_ascii_digit())
        }),
        (json!({ "grammar": lark }), |text| {
            let terms = text.split('+').map(str::parse::<u32>);
            (2..=4).contains(&terms.clone().count()) && terms.into_iter().all(|term| term.is_ok())
        }),
        (json!({ "choice": ["yes", "no", "not at all", "é"] }), |text| {
            ["yes", "no", "not at all", "é"].contains(&text)
        }),
        (json!({ "json": { "type": "integer", "minimum": 10, "maximum": 500 } }), |text| {
            text.trim().parse().is_ok_and(|number: u32| (10..=500).contains(&number))
        }),
    ]
}

#[test]
fn expressions_grammars_and_choices_bind_both_routes() {
    let server = serve(Settings::default());
    for (format, fits) in extensions() {
        for seed in 0..3 {
            let more = json!({ "structured_outputs": format, "seed": seed, "temperature": 1 });
            let text = answer(&server, &ask(joined(&more, json!({ "enable_thinking": false }))));
            assert!(fits(&text), "{format}: {text}");
            let reply = server.post(TEXT, &joined(&more, json!({ "prompt": "Say: " }))).json();
            assert_eq!(reply["choices"][0]["finish_reason"], "stop", "{reply}");
            let text = reply["choices"][0]["text"].as_str().unwrap();
            assert!(fits(text), "{format}: {text}");
        }
    }
    let published = json!({ "prompt": "x", "response_format": { "type": "json_schema",
        "json_schema": { "name": "a", "schema": { "const": [1, "b"] } } } });
    let reply = server.post(TEXT, &published).json();
    let value: Value = serde_json::from_str(reply["choices"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(value, json!([1, "b"]));
}

#[test]
fn several_choices_seeds_and_log_probabilities_go_with_a_format() {
    let server = serve(Settings::default());
    let (schema, fits) = schemas().remove(0);
    let more = json!({ "n": 3, "seed": 4, "temperature": 1, "enable_thinking": false,
        "logprobs": true, "top_logprobs": 2, "presence_penalty": 0.5 });
    let body = ask(joined(&with_schema(&schema), more));
    let reply = server.chat(&body);
    let choices = reply["choices"].as_array().unwrap();
    let texts: Vec<&str> =
        choices.iter().map(|choice| choice["message"]["content"].as_str().unwrap()).collect();
    assert!(texts.iter().all(|text| fits(&serde_json::from_str(text).unwrap())), "{texts:?}");
    assert!(texts[0] != texts[1] || texts[1] != texts[2], "{texts:?}");
    for choice in choices {
        let entries = choice["logprobs"]["content"].as_array().unwrap();
        let bytes: Vec<u8> = entries
            .iter()
            .flat_map(|entry| entry["bytes"].as_array().unwrap())
            .map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap())
            .collect();
        assert_eq!(
            String::from_utf8(bytes).unwrap(),
            choice["message"]["content"].as_str().unwrap()
        );
        // Those of the model itself, which knows nothing of the format.
        assert!(entries.iter().all(|entry| entry["logprob"].as_f64().unwrap() < 0.0));
    }
    assert_eq!(server.chat(&body)["choices"], reply["choices"]);
}

#[test]
fn a_limit_inside_a_format_is_told_and_the_text_left_as_it_is() {
    let server = serve(Settings::default());
    let schema = json!({ "type": "object", "required": ["a_long_name"],
        "properties": { "a_long_name": { "const": 1 } }, "additionalProperties": false });
    let body = ask(joined(
        &with_schema(&schema),
        json!({ "enable_thinking": false, "max_tokens": 4, "logit_bias": { "32": -100, "10": -100,
            "9": -100, "13": -100 } }),
    ));
    let choice = server.chat(&body)["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["content"], "{\"a_");
}

#[test]
fn formats_that_cannot_be_kept_are_refused_and_the_place_is_named() {
    let server = serve(Settings::default());
    let deep = json!({ "type": "object", "properties": { "a": { "type": "array",
        "items": { "type": "string", "contentEncoding": "x", "not": {} } } } });
    let schema = "response_format.json_schema.schema";
    let wide: serde_json::Map<_, _> = (0..20_000).map(|i| (format!("p{i}"), json!({}))).collect();
    for (more, param) in [
        (with_schema(&deep), format!("{schema}.properties.a.items")),
        (with_schema(&json!({ "type": "nothing" })), format!("{schema}.type")),
        // It would be rounded.
        (
            with_schema(&json!({ "items": { "const": 9_007_199_254_740_993_u64 } })),
            format!("{schema}.items.const"),
        ),
        (
            with_schema(&json!({ "type": "object", "minProperties": 2 })),
            format!("{schema}.minProperties"),
        ),
        (with_schema(&json!({ "properties": wide })), schema.into()),
        (with_schema(&json!({ "$ref": "http://127.0.0.1:1/x.json" })), schema.into()),
        (json!({ "structured_outputs": { "regex": "a(" } }), "structured_outputs.regex".into()),
        (
            json!({ "structured_outputs": { "grammar": "start: nobody" } }),
            "structured_outputs.grammar".into(),
        ),
        (
            json!({ "structured_outputs": { "grammar": format!("start: {}", "(".repeat(50_000)) } }),
            "structured_outputs.grammar".into(),
        ),
    ] {
        for (path, base) in [(CHAT, ask(json!({}))), (TEXT, json!({ "prompt": "a" }))] {
            let reply = server.post(path, &joined(&base, more.clone()));
            assert_eq!(reply.status, 400, "{}", reply.body);
            let error = &reply.json()["error"];
            assert_eq!(error["param"], param, "{error}");
            assert!(error["message"].as_str().unwrap().len() < 700, "{error}");
        }
    }
    // The server is as it was.
    server.chat(&ask(json!({ "max_tokens": 1 })));
}

#[test]
fn notes_of_a_schema_that_are_not_kept_are_listed() {
    let server = serve(Settings::default());
    let schema = json!({ "type": "object", "properties": {
        "tags": { "type": "array", "uniqueItems": true }, "c": { "type": "string", "format": "color" },
        "day": { "type": "string", "format": "date" } } });
    let place = "response_format.json_schema.schema.properties";
    let reply = server.post(CHAT, &ask(joined(&with_schema(&schema), json!({ "max_tokens": 1 }))));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let listed = format!("{place}.tags.uniqueItems, {place}.c.format");
    assert_eq!(reply.header("x-lily-ignored"), Some(listed.as_str()));
}

#[test]
fn r84_nested_and_recursive_schemas_are_kept_or_refused() {
    let server = serve(Settings::default());
    let mut deep = json!({ "const": 0 });
    for depth in 1..=14 {
        deep = json!({ "oneOf": [{ "const": depth }, deep, { "type": "array", "items": deep }] });
    }
    let off = json!({ "enable_thinking": false, "max_tokens": 30 });
    let reply = server.post(CHAT, &ask(joined(&with_schema(&deep), off.clone())));
    assert!([200, 400].contains(&reply.status), "{}", reply.body);
    let tree = json!({ "$ref": "#/$defs/t", "$defs": { "t": { "anyOf": [{ "const": 1 },
        { "type": "array", "maxItems": 1, "items": { "$ref": "#/$defs/t" } }] } } });
    let more = joined(&off, json!({ "logit_bias": { "49": 100 }, "max_tokens": 200 }));
    let text = answer(&server, &ask(joined(&with_schema(&tree), more)));
    assert_eq!(text.trim(), "1");
}

#[test]
fn eight_at_once_with_different_formats_do_not_mix() {
    let server = serve_sessions(Box::new(device()), 4096, 4, Settings::default());
    let body = |i: usize| {
        let (schema, _) = &schemas()[i % 4];
        let own = json!({ "type": "array", "minItems": 2, "maxItems": 2, "prefixItems":
            [{ "const": format!("code word {i}") }, schema],
            "$defs": { "flag": { "type": "null" } } });
        let schema = if i % 4 == 2 { json!({ "const": format!("code word {i}") }) } else { own };
        ask(joined(
            &with_schema(&schema),
            json!({ "enable_thinking": false, "temperature": 1, "seed": i }),
        ))
    };
    let alone: Vec<String> = (0..8).map(|i| answer(&server, &body(i))).collect();
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..8)
            .map(|i| {
                scope.spawn({
                    let (server, body) = (&server, &body);
                    move || answer(server, &body(i))
                })
            })
            .collect();
        for (i, text) in all.into_iter().enumerate() {
            let text = text.join().unwrap();
            assert!(text.contains(&format!("code word {i}")), "{text}");
            assert_eq!(text, alone[i]);
        }
    });
}

#[test]
fn r75_a_client_that_leaves_ends_a_bound_reply() {
    let server = serve(Settings::default());
    let body = ask(json!({ "enable_thinking": false, "logit_bias": going_on(json!({})),
        "structured_outputs": { "regex": "(?s:.*)" } }));
    let mut events = server.stream_chat(&body);
    while events.next()["choices"][0]["delta"]["content"].as_str().unwrap_or("").is_empty() {}
    drop(events);
    server.wait_for(0, 0);
}

#[test]
fn a_scripted_text_is_said_as_it_is_but_its_format_is_checked() {
    let server = serve_script(&[&["</think>", "no JSON"]], Settings::default());
    let good = ask(json!({ "response_format": { "type": "json_object" } }));
    assert_eq!(server.chat(&good)["choices"][0]["message"]["content"], "no JSON");
    let bad = ask(json!({ "structured_outputs": { "regex": "(" } }));
    assert_eq!(server.post(CHAT, &bad).status, 400);
}

#[test]
fn the_model_list_names_formats_and_choices() {
    let server = serve(Settings::default());
    let model = server.send("GET", "/v1/models", &[], "").json()["data"][0].clone();
    assert_eq!(model["structured_output"], true);
    assert_eq!(
        model["formats"],
        json!(["json_object", "json_schema", "regex", "grammar", "choice"])
    );
    assert_eq!(model["tool_choice"], json!(["auto", "none", "required", "function"]));
}
