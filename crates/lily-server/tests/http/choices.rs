//! Several choices, several prompts, and prompts that come back.

// A failure in a helper fails the test.
#![allow(clippy::unwrap_used)]

use crate::common::{ask, endless, going_on, serve, serve_script};
use lily_server::Settings;
use serde_json::{Value, json};

const TEXT: &str = "/v1/completions";

/// The joined text of a choice in a stream of text completions.
fn joined(chunks: &[Value], index: usize) -> String {
    let choice = |chunk: &Value| {
        let choice = chunk["choices"].get(0)?;
        (choice["index"] == index).then(|| choice["text"].as_str().unwrap().to_owned())
    };
    chunks.iter().filter_map(choice).collect()
}

#[test]
fn choices_have_seeds_of_their_own_and_share_the_prompt() {
    let server = serve(Settings::default());
    let body = |n: u64, seed: u64| {
        endless(json!({ "n": n, "seed": seed, "temperature": 1, "max_tokens": 12 }))
    };
    let thoughts = |reply: &Value| -> Vec<String> {
        let thought = |choice: &Value| choice["message"]["reasoning_content"].to_string();
        reply["choices"].as_array().unwrap().iter().map(thought).collect()
    };
    let three = server.chat(&body(3, 5));
    let texts = thoughts(&three);
    assert_eq!(texts.len(), 3);
    assert!(texts[0] != texts[1] && texts[1] != texts[2], "{texts:?}");
    // The first is that of a request for one; the others follow from the seed.
    let one = server.chat(&body(1, 5));
    assert_eq!(thoughts(&one), texts[..1]);
    assert_eq!(thoughts(&server.chat(&body(3, 5))), texts);
    assert_eq!(three["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]);
    assert_eq!(three["usage"]["completion_tokens"], 36);
    let indexes: Vec<&Value> =
        three["choices"].as_array().unwrap().iter().map(|choice| &choice["index"]).collect();
    assert_eq!(indexes, [0, 1, 2]);
}

#[test]
fn streamed_choices_end_once_each_and_have_one_usage() {
    let server = serve(Settings::default());
    let mut body = endless(json!({ "n": 2, "max_tokens": 5, "temperature": 1 }));
    let whole = server.chat(&body);
    body["stream_options"] = json!({ "include_usage": true });
    let chunks = server.stream_chat(&body).rest();
    for index in 0..2 {
        let of_choice: Vec<&Value> = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"].get(0))
            .filter(|choice| choice["index"] == index)
            .collect();
        assert_eq!(of_choice[0]["delta"]["role"], "assistant");
        let reasons = of_choice.iter().filter(|choice| !choice["finish_reason"].is_null());
        assert_eq!(reasons.count(), 1);
        let thought: String = of_choice
            .iter()
            .filter_map(|choice| choice["delta"]["reasoning_content"].as_str())
            .collect();
        assert_eq!(thought, whole["choices"][index]["message"]["reasoning_content"]);
    }
    assert_eq!(chunks.last().unwrap()["usage"], whole["usage"]);
}

#[test]
fn several_prompts_are_several_choices_in_order() {
    let server = serve(Settings::default());
    let body = |prompt: Value, n: u64| {
        json!({ "prompt": prompt, "n": n, "max_tokens": 6, "seed": 3,
            "logit_bias": going_on(json!({})), "temperature": 0 })
    };
    let texts = |reply: &Value| -> Vec<String> {
        let text = |choice: &Value| choice["text"].as_str().unwrap().to_owned();
        reply["choices"].as_array().unwrap().iter().map(text).collect()
    };
    let each: Vec<String> = ["abc", "xyz"]
        .iter()
        .flat_map(|prompt| texts(&server.post(TEXT, &body(json!(prompt), 1)).json()))
        .collect();
    let both = server.post(TEXT, &body(json!(["abc", "xyz"]), 1)).json();
    assert_eq!(texts(&both), each);
    assert_eq!(both["usage"]["prompt_tokens"], 6);
    assert_eq!(both["usage"]["completion_tokens"], 12);
    let ids = server.post(TEXT, &body(json!([[97, 98, 99], [120, 121, 122]]), 2)).json();
    let doubled = [&each[0], &each[0], &each[1], &each[1]];
    assert_eq!(texts(&ids).iter().collect::<Vec<_>>(), doubled);
    assert_eq!(ids["usage"]["prompt_tokens"], 6);
}

#[test]
fn r81_an_echo_begins_with_the_prompt_streamed_and_not() {
    let server = serve_script(&[&["one", " two"]], Settings::default());
    for prompt in [json!("Say: "), json!([83, 97, 121, 58, 32])] {
        let mut body = json!({ "prompt": prompt, "echo": true });
        let whole = server.post(TEXT, &body).json();
        assert_eq!(whole["choices"][0]["text"], "Say: one two");
        body["stream"] = json!(true);
        let chunks = server.stream(TEXT, &body).rest();
        assert_eq!(joined(&chunks, 0), "Say: one two");
    }
}

#[test]
fn all_choices_of_a_request_take_one_line_of_a_script() {
    let server = serve_script(&[&["</think>a"], &["</think>b"]], Settings::default());
    for text in ["a", "b", "a"] {
        let reply = server.chat(&ask(json!({ "n": 2 })));
        for index in 0..2 {
            assert_eq!(reply["choices"][index]["message"]["content"], text);
        }
    }
}
