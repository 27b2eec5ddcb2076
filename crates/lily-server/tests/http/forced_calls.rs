//! Calls that are forced, and calls that are bound. The model is random, so whatever fits is the
//! grammar's doing. The numbers tell the reports of users of other servers apart.

// A failure in a helper fails the test.
#![allow(clippy::unwrap_used)]

use crate::common::{Served, THOUGHT_END, TURN_END, ask, serve};
use lily_server::Settings;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
/// Begins a call, in the tiny model's vocabulary.
const CALL: &str = "504";

fn tools() -> Value {
    json!([
        { "type": "function", "function": { "name": "book", "parameters": {
            "type": "object", "required": ["city", "days", "rooms"], "properties": {
                "city": { "type": "string", "maxLength": 8 },
                "days": { "type": "integer", "minimum": 1, "maximum": 30 },
                "kind": { "enum": ["inn", "hotel"] },
                "rooms": { "type": "array", "minItems": 1, "maxItems": 2,
                    "items": { "$ref": "#/$defs/room" } } },
            "$defs": { "room": { "type": "object", "required": ["beds"],
                "additionalProperties": false,
                "properties": { "beds": { "enum": [1, 2] }, "bath": { "type": "boolean" } } } } } } },
        { "type": "function", "function": { "name": "now" } },
    ])
}

fn fits(name: &str, arguments: &Value) -> bool {
    if name == "now" {
        return *arguments == json!({});
    }
    let is_room = |room: &Value| {
        (room["beds"] == 1 || room["beds"] == 2) && room.get("bath").is_none_or(Value::is_boolean)
    };
    name == "book"
        && arguments["city"].as_str().is_some_and(|city| city.chars().count() <= 8)
        && arguments["days"].as_i64().is_some_and(|days| (1..=30).contains(&days))
        && arguments.get("kind").is_none_or(|kind| kind == "inn" || kind == "hotel")
        && arguments["rooms"]
            .as_array()
            .is_some_and(|rooms| (1..=2).contains(&rooms.len()) && rooms.iter().all(is_room))
}

/// Names and arguments of a reply that must consist of calls that fit, the same streamed and whole.
fn calls(server: &Served, more: Value) -> Vec<(String, Value)> {
    let mut body = ask(json!({ "tools": tools(), "enable_thinking": false, "temperature": 1 }));
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let choice = server.chat(&body)["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    assert_eq!(choice["message"]["content"], Value::Null);
    let mut pieces: Vec<String> = Vec::new();
    for chunk in server.stream_chat(&body).rest() {
        for call in chunk["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            pieces.resize(pieces.len().max(index + 1), String::new());
            pieces[index].push_str(call["function"]["arguments"].as_str().unwrap());
        }
    }
    let whole = choice["message"]["tool_calls"].as_array().unwrap();
    let text = |call: &Value| call["function"]["arguments"].as_str().unwrap().to_owned();
    assert_eq!(whole.iter().map(text).collect::<Vec<_>>(), pieces);
    let call = |call: &Value| {
        let name = call["function"]["name"].as_str().unwrap();
        let arguments = serde_json::from_str(&text(call)).unwrap();
        assert!(fits(name, &arguments), "{name} {arguments}");
        (name.to_owned(), arguments)
    };
    whole.iter().map(call).collect()
}

#[test]
fn r62_required_calls_are_made_and_their_arguments_fit() {
    let server = serve(Settings::default());
    // The letter that a name begins with decides.
    for (letter, name) in [("98", "book"), ("110", "now")] {
        for seed in 0..2 {
            let more = json!({ "tool_choice": "required", "seed": seed,
                "parallel_tool_calls": false, "logit_bias": { letter: 30 } });
            let calls = calls(&server, more);
            assert_eq!((calls.len(), calls[0].0.as_str()), (1, name));
        }
    }
}

#[test]
fn r62_a_named_tool_is_called_whatever_the_model_likes() {
    let server = serve(Settings::default());
    for (name, choice) in [
        ("book", json!({ "type": "function", "function": { "name": "book" } })),
        ("now", json!({ "type": "function", "function": { "name": "now" } })),
        ("book", json!({ "type": "function", "name": "book" })),
    ] {
        // Other texts are far more likely.
        let more =
            json!({ "tool_choice": choice, "seed": 2, "logit_bias": { TURN_END: 50, "65": 20 } });
        let calls = calls(&server, more);
        assert!(calls.iter().all(|(called, _)| called == name), "{calls:?}");
    }
    let unknown = json!({ "type": "function", "function": { "name": "c" } });
    let reply = server.post(CHAT, &ask(json!({ "tools": tools(), "tool_choice": unknown })));
    assert_eq!(reply.status, 400);
    assert_eq!(reply.json()["error"]["param"], "tool_choice.function.name");
}

#[test]
fn r59_several_forced_calls_have_indexes_of_their_own() {
    let server = serve(Settings::default());
    // A line feed behind a call goes on with another one.
    let most = (0..4).map(|seed| {
        let more = json!({ "tool_choice": "required", "seed": seed,
            "logit_bias": { "10": 4, TURN_END: 4 } });
        calls(&server, more).len()
    });
    assert!(most.max().unwrap() > 1);
}

#[test]
fn r44_a_thought_comes_in_front_of_a_forced_call_and_the_call_behind_it() {
    let server = serve(Settings::default());
    for bias in [json!({ THOUGHT_END: -100, TURN_END: 100, CALL: 100 }), json!({ CALL: 100 })] {
        let body = ask(json!({ "tools": tools(), "tool_choice": "required", "thinking_budget": 15,
            "temperature": 1, "seed": 3, "logit_bias": bias, "parallel_tool_calls": false }));
        let choice = server.chat(&body)["choices"][0].clone();
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        assert!(!choice["message"]["reasoning_content"].as_str().unwrap().is_empty());
        let call = &choice["message"]["tool_calls"][0]["function"];
        let arguments = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!(fits(call["name"].as_str().unwrap(), &arguments), "{call}");
    }
}

#[test]
fn strict_tools_bind_calls_that_the_model_decides_to_make() {
    let server = serve(Settings::default());
    let mut strict = tools();
    strict[0]["function"]["strict"] = json!(true);
    let body = |tools: &Value| {
        json!({ "tools": tools, "parallel_tool_calls": false, "seed": 5, "max_tokens": 400,
            "logit_bias": { CALL: 100 } })
    };
    assert_eq!(calls(&server, body(&strict)).len(), 1);
    // Without a strict tool a random model makes no call.
    let mut free = ask(json!({ "enable_thinking": false, "temperature": 1 }));
    free.as_object_mut().unwrap().extend(body(&tools()).as_object().unwrap().clone());
    assert_ne!(server.chat(&free)["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn r63_a_tool_of_many_optional_fields_can_be_forced() {
    let server = serve(Settings::default());
    let field = |i: usize| {
        (
            format!("f{i}"),
            json!({ "type": ["integer", "null"], "maximum": 99,
        "minimum": 0 }),
        )
    };
    let fields: serde_json::Map<String, Value> = (0..48).map(field).collect();
    for strict in [false, true] {
        let tool = json!({ "type": "function", "function": { "name": "log_food", "strict": strict,
            "parameters": { "type": "object", "properties": fields } } });
        let body = ask(json!({ "tools": [tool], "tool_choice": "required", "temperature": 1,
            "enable_thinking": false, "seed": 1, "parallel_tool_calls": false,
            // Sooner or later `</function>`.
            "logit_bias": { "47": 3 } }));
        let choice = server.chat(&body)["choices"][0].clone();
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str();
        let arguments: Value = serde_json::from_str(arguments.unwrap()).unwrap();
        let fits = |value: &Value| value.is_null() || value.as_u64().is_some_and(|n| n < 100);
        assert!(arguments.as_object().unwrap().values().all(fits), "{arguments}");
    }
}

#[test]
fn a_limit_inside_a_forced_call_makes_no_call() {
    let server = serve(Settings::default());
    let body = ask(json!({ "tools": tools(), "tool_choice": "required", "enable_thinking": false,
        "max_tokens": 20 }));
    let choice = server.chat(&body)["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "length");
    assert!(choice["message"].get("tool_calls").is_none(), "{choice}");
    let raw = choice["lily"]["unfinished_call"].as_str().unwrap();
    assert!(raw.starts_with("<tool_call>\n<function="), "{raw}");
}

#[test]
fn tools_that_cannot_be_kept_are_refused_by_name() {
    let server = serve(Settings::default());
    let with = |parameters: Value, strict: bool| {
        let good = tools()[1].clone();
        let bad = json!({ "type": "function",
            "function": { "name": "bad", "strict": strict, "parameters": parameters } });
        ask(json!({ "tools": [good, bad], "tool_choice": "required", "max_tokens": 1 }))
    };
    let unknown = json!({ "properties": { "a": { "type": "array", "contains": {} } } });
    let wrong = json!({ "properties": { "a": { "type": "array", "items": { "minLength": -1 } } } });
    for (body, param) in [
        (with(unknown.clone(), true), Some("tools[1].function.parameters.properties.a")),
        (
            with(wrong.clone(), true),
            Some("tools[1].function.parameters.properties.a.items.minLength"),
        ),
        // What is not strict is kept as far as it can be.
        (with(unknown, false), None),
        (with(wrong, false), None),
        (
            with(json!({ "properties": { "a\nb": {} }, "required": ["a\nb"] }), false),
            Some("tools[1].function.parameters.properties.a\nb"),
        ),
    ] {
        let reply = server.post(CHAT, &body);
        match param {
            None => assert_eq!(reply.status, 200, "{}", reply.body),
            Some(param) => {
                assert_eq!(reply.status, 400, "{}", reply.body);
                assert_eq!(reply.json()["error"]["param"], param);
            }
        }
    }
}

#[test]
fn what_a_forced_call_does_not_keep_is_listed() {
    let server = serve(Settings::default());
    let parameters = json!({ "type": "object", "required": ["when"], "not": { "required": ["x"] },
        "properties": { "when": { "type": "string", "format": "iri" },
            "day": { "type": "string", "format": "date" },
            "tags": { "type": "array", "uniqueItems": true } } });
    let tool = |strict: bool| {
        json!({ "type": "function",
        "function": { "name": "f", "strict": strict, "parameters": parameters } })
    };
    let body = |strict: bool, choice: Value| {
        ask(json!({ "tools": [tools()[1], tool(strict)], "tool_choice": choice, "max_tokens": 1,
            "user": "me" }))
    };
    let named = json!({ "type": "function", "function": { "name": "f" } });
    for choice in [json!("required"), named.clone()] {
        let reply = server.post(CHAT, &body(false, choice));
        assert_eq!(reply.status, 200, "{}", reply.body);
        let place = "tools[1].function.parameters";
        let listed = format!(
            "user, {place}.properties.when.format, {place}.properties.tags.uniqueItems, {place}.not"
        );
        assert_eq!(reply.header("x-lily-ignored"), Some(listed.as_str()));
    }
    // Calls leave no answer that could have a format.
    let mut both = body(false, json!("required"));
    both["tools"] = json!([tools()[1]]);
    both["response_format"] = json!({ "type": "json_object" });
    let reply = server.post(CHAT, &both);
    assert_eq!(reply.header("x-lily-ignored"), Some("user, response_format"));
    // Nothing is promised of calls that the model decides to make.
    let free = server.post(CHAT, &body(false, json!("auto")));
    assert_eq!(free.header("x-lily-ignored"), Some("user"));
    for choice in [json!("auto"), named] {
        let refused = server.post(CHAT, &body(true, choice));
        assert_eq!(refused.status, 400);
        let param = refused.json()["error"]["param"].clone();
        assert_eq!(param, "tools[1].function.parameters.not");
    }
}

#[test]
fn a_strict_tool_whose_call_has_no_meaning_or_no_end_is_refused_at_the_start() {
    let server = serve(Settings::default());
    let large = 9_007_199_254_740_993_u64;
    let one = |schema: Value| json!({ "type": "object", "properties": { "a": schema }, "required": ["a"] });
    for (parameters, place, words) in [
        (one(json!("string")), ".properties.a", "but it is a string"),
        (one(json!({ "type": "text" })), ".properties.a.type", "`text`"),
        (
            one(json!({ "type": "integer", "const": large })),
            ".properties.a.const",
            "9007199254740993",
        ),
        (one(json!({ "$ref": "#" })), "", "contains itself"),
        (one(json!({ "type": "string", "pattern": "^</parameter>$" })), ".properties.a", "written"),
    ] {
        let function = json!({ "name": "f", "strict": true, "parameters": parameters });
        let tool = json!({ "type": "function", "function": function });
        for choice in ["auto", "required"] {
            let reply = server.post(CHAT, &ask(json!({ "tools": [tool], "tool_choice": choice })));
            assert_eq!(reply.status, 400, "{}", reply.body);
            let error = reply.json()["error"].clone();
            assert_eq!(error["param"], format!("tools[0].function.parameters{place}"), "{error}");
            assert!(error["message"].as_str().unwrap().contains(words), "{error}");
        }
    }
}
