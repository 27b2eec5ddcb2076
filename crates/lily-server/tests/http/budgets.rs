//! Bounds on thoughts. The numbers tell the reports of users of other servers apart.

// A failure in a helper fails the test.
#![allow(clippy::unwrap_used)]

use crate::common::{THOUGHT_END, ask, going_on, serve, serve_script};
use lily_server::Settings;
use serde_json::{Value, json};

/// Joined texts of a field in a stream's chunks.
fn joined(chunks: &[Value], field: &str) -> String {
    let delta =
        |chunk: &Value| Some(chunk["choices"].get(0)?["delta"][field].as_str()?.to_string());
    chunks.iter().filter_map(delta).collect()
}

#[test]
fn r48_r49_a_budget_binds_and_splits_cleanly() {
    let server = serve(Settings::default());
    for budget in [
        json!({ "thinking_budget": 64 }),
        json!({ "thinking": { "type": "enabled", "budget_tokens": 64 } }),
        json!({ "reasoning": { "max_tokens": 64 } }),
    ] {
        // Left alone it would think for ever, and greedily as well as by chance.
        for temperature in [0, 1] {
            let mut body = ask(json!({
                "seed": 1, "max_tokens": 120, "temperature": temperature,
                "logit_bias": going_on(json!({ THOUGHT_END: -100 })),
            }));
            body.as_object_mut().unwrap().extend(budget.as_object().unwrap().clone());
            let whole = server.chat(&body);
            let message = &whole["choices"][0]["message"];
            let spent = &whole["usage"]["completion_tokens_details"]["reasoning_tokens"];
            // The line feed and the tag that close it.
            assert_eq!(*spent, 64 + 2, "{budget}");
            let (thought, answer) = (&message["reasoning_content"], &message["content"]);
            assert!(!answer.as_str().unwrap().is_empty());
            for text in [thought, answer] {
                assert!(!text.as_str().unwrap().contains("think>"), "{text}");
            }
            let chunks = server.stream_chat(&body).rest();
            assert_eq!(joined(&chunks, "content"), *answer);
            assert_eq!(joined(&chunks, "reasoning_content"), *thought);
        }
    }
}

#[test]
fn r49_a_budget_of_nothing_is_no_thinking_and_a_large_one_is_none() {
    let server = serve(Settings::default());
    let bias = going_on(json!({ THOUGHT_END: -100 }));
    let with = |more: Value| {
        let mut body = ask(json!({ "seed": 1, "max_tokens": 20, "logit_bias": bias }));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.chat(&body)
    };
    let off = with(json!({ "enable_thinking": false }));
    let none = with(json!({ "thinking_budget": 0 }));
    assert_eq!(none["choices"], off["choices"]);
    let large = with(json!({ "thinking_budget": 1000 }));
    assert_eq!(large["choices"], with(json!({}))["choices"]);
}

#[test]
fn r50_a_scripted_thought_that_loops_is_cut_at_its_budget() {
    let mut pieces = vec!["I think so. "; 50];
    pieces.extend(["\n</think>\n\n", "The answer", " is 4."]);
    let server = serve_script(&[&pieces], Settings::default());
    let body = ask(json!({ "thinking_budget": 36 }));
    let message = server.chat(&body)["choices"][0]["message"].clone();
    assert_eq!(message["reasoning_content"], "I think so. I think so. I think so. ");
    assert_eq!(message["content"], "The answer is 4.");
    let chunks = server.stream_chat(&body).rest();
    assert_eq!(joined(&chunks, "content"), "The answer is 4.");
    // A thought that ends before is left alone.
    let free = server.chat(&ask(json!({ "thinking_budget": 10_000 })));
    assert_eq!(free["choices"][0]["message"]["content"], "The answer is 4.");
}
