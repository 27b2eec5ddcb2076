//! A scripted model: its words are known, everything else is as with a real one.

// A failure in a helper fails the test.
#![allow(clippy::unwrap_used)]

use crate::common::{ask, serve_script, serve_script_context};
use lily_server::Settings;
use serde_json::{Value, json};

#[test]
fn each_request_takes_the_next_line_and_refused_ones_take_none() {
    let replies: [&[&str]; 2] = [&["I thi", "nk.\n</think>\n\nFi", "rst"], &["</think>Second"]];
    let server = serve_script(&replies, Settings::default());
    for (content, reasoning) in
        [("First", json!("I think.")), ("Second", Value::Null), ("First", json!("I think."))]
    {
        server.post("/v1/chat/completions", &ask(json!({ "top_p": 2 })));
        let message = server.chat(&ask(json!({})))["choices"][0]["message"].clone();
        assert_eq!(
            (&message["content"], &message["reasoning_content"]),
            (&json!(content), &reasoning)
        );
    }
}

#[test]
fn usage_limits_and_stop_strings_act_on_a_script() {
    let server = serve_script(&[&["hm</think>", "one ", "two ", "three"]], Settings::default());
    let reply = server.chat(&ask(json!({})));
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    // The tiny model's tokens are bytes and tags; the end of the turn is one more.
    assert_eq!(reply["usage"]["completion_tokens"], 2 + 1 + 4 + 4 + 5 + 1);
    assert_eq!(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);
    let cut = server.chat(&ask(json!({ "max_tokens": 7 })));
    assert_eq!(cut["choices"][0]["message"]["content"], "one ");
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    let stopped = server.chat(&ask(json!({ "stop": " th" })));
    assert_eq!(stopped["choices"][0]["message"]["content"], "one two");
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let chunks = server.stream_chat(&ask(json!({}))).rest();
    let texts = |field: &str| -> Vec<String> {
        let text = |chunk: &Value| chunk["choices"][0]["delta"][field].as_str().map(str::to_owned);
        chunks.iter().filter_map(text).filter(|text| !text.is_empty()).collect()
    };
    assert_eq!(texts("reasoning_content"), ["hm"]);
    assert_eq!(texts("content"), ["one ", "two ", "three"]);
}

#[test]
fn the_context_bounds_a_script() {
    let server = serve_script_context(&[&["a"; 500]], 100, Settings::default());
    let reply = server.chat(&ask(json!({})));
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(reply["usage"]["total_tokens"], 100);
}
