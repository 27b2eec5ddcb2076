//! Probabilities of tokens. The numbers tell the reports of users of other servers apart.

// A failure in a helper fails the test.
#![allow(clippy::unwrap_used)]

use crate::common::{CONTROL, THOUGHT_END, TURN_END, ask, endless, going_on, serve, serve_script};
use lily_server::Settings;
use serde_json::{Value, json};

/// Entries of a choice, or of a stream's chunks.
fn entries<'a>(choices: impl IntoIterator<Item = &'a Value>) -> Vec<Value> {
    let content = |choice: &'a Value| choice["logprobs"]["content"].as_array();
    choices.into_iter().filter_map(content).flatten().cloned().collect()
}

#[test]
fn r80_every_token_has_an_entry_streamed_and_not_thinking_or_not() {
    let server = serve(Settings::default());
    let tool = json!({ "type": "function", "function": { "name": "f" } });
    for more in [json!({}), json!({ "enable_thinking": false }), json!({ "tools": [tool] })] {
        let mut body = endless(json!({
            "max_tokens": 12, "temperature": 1, "logprobs": true, "top_logprobs": 3,
        }));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let whole = server.chat(&body);
        let tokens = entries([&whole["choices"][0]]);
        assert_eq!(tokens.len(), 12, "{more}");
        let chunks = server.stream_chat(&body).rest();
        assert_eq!(entries(chunks.iter().filter_map(|chunk| chunk["choices"].get(0))), tokens);
        let mut bytes = Vec::new();
        for token in &tokens {
            let top = token["top_logprobs"].as_array().unwrap();
            assert_eq!(top.len(), 3);
            let logprobs: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().unwrap()).collect();
            assert!(logprobs.is_sorted_by(|a, b| a >= b), "{logprobs:?}");
            assert!(token["logprob"].as_f64().unwrap() <= logprobs[0] && logprobs[0] <= 0.0);
            let of_token = token["bytes"].as_array().unwrap();
            bytes.extend(of_token.iter().map(|byte| byte.as_u64().unwrap() as u8));
        }
        // The entries spell the text that was delivered.
        let message = &whole["choices"][0]["message"];
        let text = [&message["reasoning_content"], &message["content"]];
        let text: String = text.iter().filter_map(|text| text.as_str()).collect();
        assert_eq!(String::from_utf8_lossy(&bytes), text);
    }
}

#[test]
fn the_token_that_ends_a_text_has_no_entry() {
    let server = serve(Settings::default());
    let body = ask(json!({ "logprobs": true, "logit_bias": { TURN_END: 100 } }));
    let reply = server.chat(&body);
    assert_eq!(reply["usage"]["completion_tokens"], 1);
    assert_eq!(reply["choices"][0]["logprobs"]["content"], json!([]));
    // Nor has one that stands between turns and ends one for that reason.
    for control in CONTROL {
        let body = ask(json!({ "logprobs": true, "logit_bias": { control: 100 } }));
        let reply = server.chat(&body);
        assert_eq!(reply["choices"][0]["finish_reason"], "stop", "{control}");
        assert_eq!(reply["usage"]["completion_tokens"], 1);
        assert_eq!(reply["choices"][0]["logprobs"]["content"], json!([]));
    }
    let without = server.chat(&ask(json!({ "max_tokens": 1 })));
    assert_eq!(without["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn log_probabilities_are_those_before_biases() {
    let server = serve(Settings::default());
    let first = |bias: Value| {
        let body = ask(json!({
            "max_tokens": 1, "temperature": 0, "logprobs": true, "top_logprobs": 20,
            "logit_bias": bias,
        }));
        entries([&server.chat(&body)["choices"][0]]).remove(0)
    };
    let free = first(json!({}));
    let forced = first(json!({ THOUGHT_END: 100 }));
    assert_eq!(forced["token"], "</think>");
    assert_eq!(forced["top_logprobs"], free["top_logprobs"]);
}

#[test]
fn text_completions_have_lists_of_one_length() {
    let server = serve(Settings::default());
    let body = json!({ "prompt": "abc", "max_tokens": 6, "logprobs": 2, "seed": 1,
        "logit_bias": going_on(json!({})) });
    let whole = server.post("/v1/completions", &body).json();
    let logprobs = &whole["choices"][0]["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), 6, "{list}");
    }
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let chunks = server.stream("/v1/completions", &streamed).rest();
    for list in ["tokens", "token_logprobs", "text_offset"] {
        let joined: Vec<Value> = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["logprobs"][list].as_array())
            .flatten()
            .cloned()
            .collect();
        assert_eq!(json!(joined), logprobs[list], "{list}");
    }
    // Bytes that are no text by themselves are told apart, and stand where their character does.
    let bytes = json!({ "prompt": "abc", "max_tokens": 4, "logprobs": 5, "temperature": 0,
        "structured_outputs": { "regex": "x\u{1f600}" }, "logit_bias": going_on(json!({})) });
    let whole = server.post("/v1/completions", &bytes).json();
    let logprobs = &whole["choices"][0]["logprobs"];
    let tokens = json!(["x", "bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98"]);
    assert_eq!((&logprobs["tokens"], &logprobs["text_offset"]), (&tokens, &json!([0, 1, 1, 1])));
    for top in logprobs["top_logprobs"].as_array().unwrap() {
        assert_eq!(top.as_object().unwrap().len(), 5, "{top}");
    }
    let echoed = json!({ "prompt": "a", "echo": true, "logprobs": 1 });
    let refused = server.post("/v1/completions", &echoed);
    assert_eq!(refused.json()["error"]["param"], "logprobs");
}

#[test]
fn a_script_is_certain_of_its_tokens() {
    let server = serve_script(&[&["hm</think>", "ab"]], Settings::default());
    let body = ask(json!({ "logprobs": true, "top_logprobs": 1 }));
    let tokens = entries([&server.chat(&body)["choices"][0]]);
    let texts: Vec<&str> = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(texts, ["h", "m", "</think>", "a", "b"]);
    assert!(tokens.iter().all(|token| token["logprob"] == 0.0));
}
