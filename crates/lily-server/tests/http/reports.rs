//! What users reported of servers like this one, and what must hold instead. The numbers tell the
//! reports apart.

// A failure in a helper fails the test.
#![allow(clippy::unwrap_used)]

use crate::common::{TURN_END, ask, endless, going_on, serve, serve_context, serve_script};
use lily_server::Settings;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// Joined texts of a field in a stream's chunks.
fn joined(chunks: &[Value], field: &str) -> String {
    let delta =
        |chunk: &Value| Some(chunk["choices"].get(0)?["delta"][field].as_str()?.to_string());
    chunks.iter().filter_map(delta).collect()
}

fn merged(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn r42_a_cut_inside_a_character_is_the_same_streamed_and_not() {
    let server = serve(Settings::default());
    // Only bytes that no text can hold alone: lead bytes of four, three and two, and one of ASCII.
    let bias = json!({ "240": 100, "226": 99, "195": 99, "97": 99, TURN_END: -100 });
    for limit in 1..=12 {
        let body = ask(json!({
            "seed": limit, "temperature": 2, "max_tokens": limit, "logit_bias": bias,
            "enable_thinking": false,
        }));
        let whole = server.chat(&body);
        let chunks = server.stream_chat(&body).rest();
        let content = whole["choices"][0]["message"]["content"].as_str().unwrap();
        assert_eq!(joined(&chunks, "content"), content);
        assert!(!content.is_empty());
    }
}

#[test]
fn r45_a_thought_that_is_cut_is_no_answer_and_is_sent_once() {
    let server = serve(Settings::default());
    let body = endless(json!({ "max_tokens": 50 }));
    let whole = server.chat(&body);
    let chunks = server.stream_chat(&body).rest();
    let thought = whole["choices"][0]["message"]["reasoning_content"].as_str().unwrap();
    assert_eq!(joined(&chunks, "reasoning_content"), thought);
    assert_eq!(joined(&chunks, "content"), "");
    assert_eq!(whole["choices"][0]["message"]["content"], "");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
}

#[test]
fn r46_r47_every_switch_turns_thinking_off_streamed_and_not() {
    let server = serve(Settings::default());
    for (switch, thinks) in [
        (json!({}), true),
        (json!({ "enable_thinking": true }), true),
        (json!({ "reasoning_effort": "none" }), false),
        (json!({ "enable_thinking": false }), false),
        (json!({ "chat_template_kwargs": { "enable_thinking": false } }), false),
        (json!({ "reasoning": { "effort": "none" } }), false),
        (json!({ "thinking": { "type": "disabled" } }), false),
    ] {
        let body = merged(endless(json!({ "max_tokens": 20 })), &switch);
        let whole = server.chat(&body);
        let message = &whole["choices"][0]["message"];
        let chunks = server.stream_chat(&body).rest();
        for field in ["content", "reasoning_content"] {
            assert_eq!(joined(&chunks, field), message[field].as_str().unwrap_or(""), "{body}");
        }
        assert_eq!(message["content"] == "", thinks, "{body}");
        let spent = &whole["usage"]["completion_tokens_details"]["reasoning_tokens"];
        assert_eq!(*spent, if thinks { 20 } else { 0 }, "{body}");
    }
}

#[test]
fn r60_one_chunk_finishes_with_a_published_reason() {
    let server = serve(Settings::default());
    for (body, reason) in [
        (endless(json!({ "max_tokens": 5 })), "length"),
        (ask(json!({ "logit_bias": { TURN_END: 100 } })), "stop"),
    ] {
        let chunks = server.stream_chat(&body).rest();
        let reasons: Vec<&Value> = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0]["finish_reason"])
            .filter(|reason| !reason.is_null())
            .collect();
        assert_eq!(reasons, [reason]);
    }
}

#[test]
fn r78_a_stop_string_over_several_tokens_is_removed_whole() {
    let server = serve(Settings::default());
    let base = ask(json!({
        "seed": 5, "max_tokens": 60, "logit_bias": going_on(json!({})), "enable_thinking": false,
    }));
    let whole = server.chat(&base);
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap().to_string();
    let characters: Vec<char> = text.chars().collect();
    // Each token is a byte: eight characters are at least eight tokens.
    let middle: String = characters[20..28].iter().collect();
    let half_at_the_end: String =
        characters[characters.len() - 4..].iter().chain(&['\u{1}']).collect();
    let overlapping: String = characters[20..24].iter().collect();
    for (stop, expected) in [
        (json!([middle]), text.split(&middle).next().unwrap()),
        (json!([middle, overlapping]), text.split(&overlapping).next().unwrap()),
        (json!([half_at_the_end]), text.as_str()),
    ] {
        let body = merged(base.clone(), &json!({ "stop": stop }));
        let whole = server.chat(&body);
        assert_eq!(whole["choices"][0]["message"]["content"], expected);
        let chunks = server.stream_chat(&body).rest();
        assert_eq!(joined(&chunks, "content"), expected);
        let last = &chunks.last().unwrap()["choices"][0]["finish_reason"];
        assert_eq!(*last, whole["choices"][0]["finish_reason"]);
    }
}

#[test]
fn r79_usage_comes_when_it_was_asked_for_in_one_extra_chunk() {
    let server = serve(Settings::default());
    for (options, asked) in [
        (Value::Null, false),
        (json!({}), false),
        (json!({ "include_usage": false }), false),
        (json!({ "include_usage": true }), true),
    ] {
        let body = ask(json!({ "max_tokens": 3, "stream_options": options }));
        let chunks = server.stream_chat(&body).rest();
        let with: Vec<&Value> = chunks.iter().filter(|chunk| chunk["usage"].is_object()).collect();
        assert_eq!(with.len(), usize::from(asked), "{body}");
        for chunk in with {
            assert_eq!(chunk["choices"], json!([]));
            assert_eq!(chunk["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        }
    }
    let whole = server.chat(&ask(json!({ "max_tokens": 3 })));
    assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[test]
fn r81_odd_bodies_are_a_400_with_all_four_fields_and_never_a_500() {
    let server = serve(Settings::default());
    for more in [
        json!({ "n": 0 }),
        json!({ "n": -1 }),
        json!({ "n": 1.5 }),
        json!({ "top_p": 2 }),
        json!({ "top_p": -0.1 }),
        json!({ "temperature": "1" }),
        json!({ "temperature": 1e30 }),
        json!({ "max_tokens": -1 }),
        json!({ "max_tokens": 1.5 }),
        json!({ "max_tokens": "10" }),
        json!({ "max_completion_tokens": 0 }),
        json!({ "seed": 1e300 }),
        json!({ "seed": "1" }),
        json!({ "stop": [[]] }),
        json!({ "stop": [null] }),
        json!({ "stream": 1 }),
        json!({ "stream": true, "stream_options": true }),
        json!({ "logit_bias": { "-1": 1 } }),
        json!({ "logit_bias": { "a": 1 } }),
        json!({ "logit_bias": { "1": "x" } }),
        json!({ "messages": {} }),
        json!({ "messages": [null] }),
        json!({ "messages": [[]] }),
        json!({ "messages": [{ "role": 1, "content": "a" }] }),
        json!({ "messages": [{ "role": "", "content": "a" }] }),
        json!({ "messages": [{ "role": "user", "content": {} }] }),
        json!({ "messages": [{ "role": "user", "content": [[]] }] }),
        json!({ "messages": [{ "role": "system" }] }),
        json!({ "model": 3 }),
        json!({ "model": [] }),
        json!({ "reasoning_effort": true }),
        json!({ "chat_template_kwargs": [] }),
        json!({ "presence_penalty": -3 }),
        json!({ "top_k": 1.5 }),
        json!({ "echo": true }),
        json!({ "": 1 }),
        json!({ "__proto__": {} }),
    ] {
        let reply = server.post(CHAT, &ask(more.clone()));
        assert_eq!(reply.status, 400, "{more}: {}", reply.body);
        let error = reply.json()["error"].clone();
        let fields: Vec<&String> = error.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["message", "type", "param", "code"], "{more}");
        assert_eq!(error["type"], "invalid_request_error", "{more}");
        assert!(error["param"].is_string(), "{more}: {error}");
    }
}

/// Values that no field expects, or hardly any.
fn odd_values() -> Vec<Value> {
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    vec![
        json!(true),
        json!(-1),
        json!(0),
        json!(1.5),
        json!(1e308),
        json!(u64::MAX),
        json!(""),
        json!("\u{0}\u{1f600}\u{fffd}"),
        json!("x".repeat(20_000)),
        json!([]),
        json!([null]),
        json!([[]]),
        json!(["x", 1]),
        json!({}),
        json!({ "": {} }),
        json!({ "type": "function", "function": {}, "name": [] }),
        json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": { "enum": [] } } }),
        deep,
    ]
}

#[test]
fn r81_any_value_in_any_field_is_an_answer_or_a_refusal() {
    let server = serve_script(&[&["</think>yes"]], Settings::default());
    let document = server.send("GET", "/openapi.json", &[], "").json();
    let chat = ask(json!({ "max_tokens": 2 }));
    let tool = json!({ "type": "function", "function": { "name": "f", "strict": true, "parameters": {
        "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] } } });
    let forced = merged(chat.clone(), &json!({ "tools": [tool], "tool_choice": "required" }));
    let text = json!({ "prompt": "a", "max_tokens": 2 });
    let conversation = json!({ "messages": chat["messages"] });
    let mut requests = Vec::new();
    for (schema, path, base) in [
        ("ChatRequest", CHAT, &chat),
        ("TextRequest", "/v1/completions", &text),
        ("TokenizeRequest", "/tokenize", &conversation),
        ("DetokenizeRequest", "/detokenize", &json!({ "tokens": [1] })),
    ] {
        let fields = &document["components"]["schemas"][schema]["properties"];
        for field in fields.as_object().unwrap().keys() {
            let with = |value| (path, merged(base.clone(), &json!({ field: value })));
            requests.extend(odd_values().into_iter().map(with));
        }
    }
    // Deeper inside.
    type Place = fn(Value) -> Value;
    let places: [Place; 12] = [
        |value| json!({ "messages": [value] }),
        |value| json!({ "messages": [{ "role": "user", "content": [value] }] }),
        |value| json!({ "messages": [{ "role": "assistant", "tool_calls": [value] }] }),
        |value| {
            json!({ "messages": [{ "role": "assistant", "tool_calls":
                [{ "id": "a", "function": { "name": "f", "arguments": value } }] }] })
        },
        |value| json!({ "tools": [{ "function": { "name": "f", "parameters": value } }] }),
        |value| {
            json!({ "tools": [{ "function": { "name": "f", "parameters":
                { "properties": { "a": value }, "required": value, "allOf": value } } }] })
        },
        |value| {
            json!({ "tools": [{ "function": { "name": "f", "parameters": { "properties":
                { "a": { "enum": value, "pattern": value, "minLength": value, "format": value } } } } }] })
        },
        |value| json!({ "tool_choice": { "type": "function", "function": value } }),
        |value| json!({ "logit_bias": { "1": value }, "tool_choice": "auto" }),
        |value| json!({ "structured_outputs": { "json": { "properties": value } } }),
        |value| json!({ "structured_outputs": { "json": { "minimum": value, "maxLength": value } } }),
        |value| json!({ "structured_outputs": { "grammar": value } }),
    ];
    for place in places {
        let with = |value| (CHAT, merged(forced.clone(), &place(value)));
        requests.extend(odd_values().into_iter().map(with));
    }
    let mut refused = 0;
    for (path, body) in &requests {
        let reply = server.post(path, body);
        let shown: String = body.to_string().chars().take(300).collect();
        assert!([200, 400, 404].contains(&reply.status), "{shown}: {}", reply.body);
        if reply.status == 200 {
            assert!(!reply.body.contains("\"error\""), "{shown}: {}", reply.body);
            continue;
        }
        refused += 1;
        let error = &reply.json()["error"];
        assert!(error["message"].as_str().unwrap().len() < 1000, "{shown}: {error}");
        assert!(error["param"].is_string(), "{shown}: {error}");
    }
    // Half of a character, written as an escape, is no text.
    for body in [r#"{"messages":[{"role":"user","content":"\ud83d"}]}"#, r#"{"\udc00":1}"#] {
        let reply = server.send("POST", CHAT, &[], body);
        assert_eq!(reply.json()["error"]["code"], "invalid_json");
    }
    assert!(refused > requests.len() / 2, "{refused} of {}", requests.len());
}

#[test]
fn r82_r83_the_limit_is_the_context_and_is_reported() {
    let server = serve_context(512, Settings::default());
    let model = server.send("GET", "/v1/models", &[], "").json()["data"][0].clone();
    assert_eq!(model["context_length"], 512);
    assert_eq!(model["note"], "It is tiny.");
    let cut = server.chat(&endless(json!({})));
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert_eq!(cut["usage"]["total_tokens"], 512);
    let long = json!([{ "role": "user", "content": "x".repeat(600) }]);
    let refused = server.post(CHAT, &ask(json!({ "messages": long })));
    assert_eq!(refused.status, 400);
    let error = refused.json()["error"].clone();
    assert_eq!(error["code"], "context_length_exceeded");
    let message = error["message"].as_str().unwrap();
    for words in ["maximum context length is 512 tokens", "prompt is too long"] {
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn r83_one_seed_gives_one_text_and_none_gives_others() {
    let server = serve(Settings::default());
    let text = |more: Value| {
        let body = endless(merged(json!({ "temperature": 1, "max_tokens": 20 }), &more));
        server.chat(&body)["choices"][0]["message"]["reasoning_content"].clone()
    };
    let first = text(json!({ "seed": 11 }));
    for _ in 0..4 {
        assert_eq!(text(json!({ "seed": 11 })), first);
    }
    // `endless` has a seed; null takes it away.
    assert_ne!(text(json!({ "seed": null })), text(json!({ "seed": null })));
}

#[test]
fn r85_a_foreign_page_gets_nothing_and_an_allowed_one_reads_errors_too() {
    let closed = serve(Settings::default());
    for header in ["Origin: https://evil.example", "Host: evil.example:8080", "Origin: null"] {
        let reply = closed.send("POST", CHAT, &[header], &ask(json!({})).to_string());
        assert_eq!(reply.status, 403, "{header}");
        assert_eq!(reply.header("access-control-allow-origin"), None, "{header}");
    }
    let settings = Settings { origins: vec!["http://app.local".into()], ..Settings::default() };
    let open = serve(settings);
    let reply = open.send("POST", CHAT, &["Origin: http://app.local"], "{");
    assert_eq!(reply.status, 400);
    assert_eq!(reply.header("access-control-allow-origin"), Some("http://app.local"));
    assert_eq!(reply.header("vary"), Some("Origin"));
}
