//! The bound of the queue, numbers that are whole in other words, and advice for old and odd clients.

// A failure in a helper fails the test.
#![allow(clippy::unwrap_used)]

use crate::common::{ask, endless, serve, serve_script};
use lily_server::Settings;
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";

#[test]
fn without_places_to_wait_in_a_server_takes_what_it_can_run() {
    let server = serve(Settings { queue: 0, ..Settings::default() });
    // Idle, and again after that.
    for _ in 0..2 {
        let mut events = server.stream_chat(&endless(json!({})));
        events.until_text();
        let refused = server.post(CHAT, &ask(json!({ "max_tokens": 1 })));
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
        drop(events);
        server.wait_for(0, 0);
    }
}

#[test]
fn all_choices_of_a_request_count_towards_the_bound() {
    let server = serve(Settings { queue: 1, ..Settings::default() });
    // One runs and one waits.
    let reply = server.chat(&ask(json!({ "n": 2, "max_tokens": 1 })));
    assert_eq!(reply["choices"].as_array().unwrap().len(), 2);
    server.wait_for(0, 0);
    let never = server.post(CHAT, &ask(json!({ "n": 3, "max_tokens": 1 })));
    assert_eq!(never.status, 400);
    assert_eq!(never.json()["error"]["param"], "n");
    let mut events = server.stream_chat(&endless(json!({})));
    events.until_text();
    let later = server.post(CHAT, &ask(json!({ "n": 2, "max_tokens": 1 })));
    assert_eq!(later.json()["error"]["code"], "queue_full");
    server.wait_for(1, 0);
}

#[test]
fn whole_numbers_may_be_written_with_a_point() {
    let server = serve(Settings::default());
    let body = endless(json!({ "max_tokens": 3.0, "n": 1.0, "seed": 7.0, "top_k": 2e1 }));
    assert_eq!(server.chat(&body)["usage"]["completion_tokens"], 3);
    let ids = server.post("/v1/completions", &json!({ "prompt": [33.0, 34], "max_tokens": 1 }));
    assert_eq!(ids.json()["usage"]["prompt_tokens"], 2);
    for (field, value) in [("max_tokens", json!(2.5)), ("seed", json!(1e300)), ("n", json!(1.5))] {
        let reply = server.post(CHAT, &ask(json!({ field: value })));
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(field)));
    }
}

#[test]
fn refusals_say_what_to_do_instead() {
    let server = serve_script(&[&["</think>yes"]], Settings::default());
    let said = |body| {
        let error = server.post(CHAT, &ask(body)).json()["error"]["message"].clone();
        error.as_str().unwrap().to_owned()
    };
    assert!(said(json!({ "functions": [{ "name": "a" }] })).contains("give `tools`"));
    assert!(said(json!({ "function_call": "auto" })).contains("give `tool_choice`"));
    // Such an origin cannot be allowed, so the advice is another one.
    let refused = server.send("POST", CHAT, &["Origin: null"], &ask(json!({})).to_string());
    let message = refused.json()["error"]["message"].to_string();
    assert!(message.contains("files") && !message.contains("--allow-origin null"), "{message}");
}
