//! What comes back: texts, streams, usage, models.

use crate::common::{CONTEXT, THOUGHT_END, TURN_END, ask, endless, going_on, serve, serve_context};
use lily_server::Settings;
use serde_json::{Value, json};

/// Joined fields of a stream's chunks.
fn joined(chunks: &[Value], field: &str) -> String {
    let delta =
        |chunk: &Value| Some(chunk["choices"].get(0)?["delta"][field].as_str()?.to_string());
    chunks.iter().filter_map(delta).collect()
}

#[test]
fn a_stream_has_the_text_of_the_whole_reply() {
    let server = serve(Settings::default());
    let ways =
        [json!({}), json!({ "enable_thinking": true }), json!({ "reasoning_effort": "none" })];
    for (way, thinking) in ways.into_iter().zip([true, true, false]) {
        let mut body = ask(json!({ "seed": 7, "temperature": 1, "max_tokens": 60 }));
        body.as_object_mut().unwrap().extend(way.as_object().unwrap().clone());
        let whole = server.chat(&body);
        assert_eq!(whole, {
            let mut again = server.chat(&body);
            for field in ["id", "created"] {
                again[field] = whole[field].clone();
            }
            again
        });
        body["stream_options"] = json!({ "include_usage": true });
        let chunks = server.stream_chat(&body).rest();

        let message = &whole["choices"][0]["message"];
        assert_eq!(joined(&chunks, "content"), message["content"].as_str().unwrap());
        let thought = message["reasoning_content"].as_str().unwrap_or("");
        assert_eq!(joined(&chunks, "reasoning_content"), thought);
        assert_eq!(!thought.is_empty(), thinking, "{body}");

        let opening = &chunks[0]["choices"][0];
        assert_eq!(opening["delta"], json!({ "role": "assistant", "content": "" }));
        let (usage, rest) = chunks.split_last().unwrap();
        assert_eq!(usage["choices"], json!([]));
        assert_eq!(usage["usage"], whole["usage"]);
        assert!(rest.iter().all(|chunk| chunk["usage"].is_null()));
        let reasons: Vec<&Value> = rest.iter().map(|c| &c["choices"][0]["finish_reason"]).collect();
        let (last, others) = reasons.split_last().unwrap();
        assert_eq!(**last, whole["choices"][0]["finish_reason"]);
        assert!(others.iter().all(|reason| reason.is_null()));
        assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
        assert!(chunks[0]["id"].as_str().unwrap().starts_with("chatcmpl-"));
        assert_ne!(chunks[0]["id"], whole["id"]);
    }
}

#[test]
fn an_answer_cut_while_thinking_is_all_reasoning() {
    let server = serve(Settings::default());
    let reply = server.chat(&endless(json!({ "max_tokens": 20 })));
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["content"], "");
    assert!(!choice["message"]["reasoning_content"].as_str().unwrap().is_empty());
    let usage = &reply["usage"];
    assert_eq!(usage["completion_tokens"], 20);
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 20);
    let prompt = usage["prompt_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], prompt + 20);
}

#[test]
fn reasoning_tokens_end_with_the_thought() {
    let server = serve(Settings::default());
    // The thought ends at once, and the answer goes on to the limit.
    let bias = going_on(json!({ THOUGHT_END: 100 }));
    let body = ask(json!({ "logit_bias": bias, "max_tokens": 5, "temperature": 0 }));
    let usage = server.chat(&body)["usage"].clone();
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 1);
    let mut off = body.clone();
    off["enable_thinking"] = json!(false);
    let usage = server.chat(&off)["usage"].clone();
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 0);
}

#[test]
fn a_stop_token_and_a_stop_string_end_with_stop() {
    let server = serve(Settings::default());
    let ended = server.chat(&ask(json!({ "logit_bias": { TURN_END: 100 } })));
    assert_eq!(ended["choices"][0]["finish_reason"], "stop");
    assert_eq!(ended["usage"]["completion_tokens"], 1);

    let body =
        json!({ "prompt": "abc", "seed": 3, "max_tokens": 40, "logit_bias": going_on(json!({})) });
    let whole = server.post("/v1/completions", &body).json();
    let text = whole["choices"][0]["text"].as_str().unwrap();
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let middle: String = text.chars().skip(text.chars().count() / 2).take(3).collect();
    let mut stopped = body.clone();
    stopped["stop"] = json!([middle, "never to be seen"]);
    let stopped = server.post("/v1/completions", &stopped).json();
    let cut = stopped["choices"][0]["text"].as_str().unwrap();
    assert_eq!(cut, text.split(&middle).next().unwrap());
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
}

#[test]
fn text_completions_stream_too_and_take_token_ids() {
    let server = serve(Settings::default());
    // In the tiny vocabulary every byte is its own id.
    let mut body = json!({ "prompt": "abc", "seed": 3, "max_tokens": 30 });
    let whole = server.post("/v1/completions", &body).json();
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(whole["usage"]["prompt_tokens"], 3);
    for prompt in [json!([97, 98, 99]), json!([[97, 98, 99]]), json!(["abc"])] {
        body["prompt"] = prompt;
        let other = server.post("/v1/completions", &body).json();
        assert_eq!(other["choices"], whole["choices"]);
    }
    body["stream"] = json!(true);
    let chunks = server.stream("/v1/completions", &body).rest();
    let text: String =
        chunks.iter().map(|c| c["choices"][0]["text"].as_str().unwrap().to_string()).collect();
    assert_eq!(text, whole["choices"][0]["text"].as_str().unwrap());
    let last = chunks.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
}

#[test]
fn without_a_limit_an_answer_takes_what_is_left_of_the_context() {
    let server = serve_context(256, Settings::default());
    let reply = server.chat(&endless(json!({})));
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(reply["usage"]["total_tokens"], 256);

    let long = "x".repeat(300);
    let refused = server.post("/v1/completions", &json!({ "prompt": long }));
    assert_eq!(refused.status, 400);
    let error = refused.json()["error"].clone();
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!(error["param"], "prompt");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("maximum context length is 256 tokens"), "{message}");
    assert!(message.contains("300 tokens"), "{message}");
}

#[test]
fn the_model_list_states_the_context_in_force() {
    let server = serve(Settings::default());
    let list = server.send("GET", "/v1/models", &[], "").json();
    let model = &list["data"][0];
    assert_eq!((&model["id"], &model["owned_by"]), (&json!("tiny"), &json!("lily")));
    assert_eq!(model["context_length"], CONTEXT);
    assert_eq!(model["max_model_len"], CONTEXT);
    assert_eq!(server.send("GET", "/v1/models/tiny", &[], "").json(), *model);
    let other = server.send("GET", "/v1/models/some/one", &[], "");
    assert_eq!(other.status, 404);
    assert_eq!(other.json()["error"]["code"], "model_not_found");
}

#[test]
fn fields_without_effect_are_listed() {
    let server = serve(Settings::default());
    let body = ask(json!({ "user": "me", "metadata": { "a": "b" }, "max_tokens": 1 }));
    let reply = server.post("/v1/chat/completions", &body);
    assert_eq!(reply.header("x-lily-ignored"), Some("user, metadata"));
    // Both routes accept the same ones.
    let fields = [
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    ];
    let all: serde_json::Map<String, Value> =
        fields.iter().map(|field| ((*field).to_owned(), json!("x"))).collect();
    for (path, mut body) in [
        ("/v1/chat/completions", ask(json!({ "max_tokens": 1 }))),
        ("/v1/completions", json!({ "prompt": "a", "max_tokens": 1 })),
    ] {
        body.as_object_mut().unwrap().extend(all.clone());
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let mut listed: Vec<&str> = reply.header("x-lily-ignored").unwrap().split(", ").collect();
        listed.sort_unstable();
        assert_eq!(listed, fields, "{path}");
    }
    let plain = server.post("/v1/chat/completions", &ask(json!({ "max_tokens": 1 })));
    assert_eq!(plain.header("x-lily-ignored"), None);
}

#[test]
fn a_budget_without_a_thought_is_listed() {
    let server = serve(Settings::default());
    let listed = |more: Value| {
        let mut body = ask(json!({ "max_tokens": 1 }));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = server.post("/v1/chat/completions", &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.header("x-lily-ignored").map(str::to_owned)
    };
    let budget = json!({ "thinking_budget": 5, "enable_thinking": false });
    assert_eq!(listed(budget).as_deref(), Some("thinking_budget"));
    let nested = json!({ "reasoning": { "max_tokens": 5, "effort": "none" } });
    assert_eq!(listed(nested).as_deref(), Some("reasoning.max_tokens"));
    assert_eq!(listed(json!({ "thinking_budget": 5, "enable_thinking": true })), None);
    assert_eq!(listed(json!({ "thinking_budget": 0 })), None);
}
