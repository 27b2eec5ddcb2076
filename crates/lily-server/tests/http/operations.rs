//! What whoever runs a server relies on: metrics, limits, leniency, and clients of all manners.

// A failure in a helper fails the test.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::common::{CONTEXT, Served, ask, endless, serve, serve_script};
use lily_server::Settings;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// Sends a request, closes the sending side, and gives all that comes back.
fn half_closed(server: &Served, method: &str, path: &str, body: &str) -> String {
    let mut stream = server.connect();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn r76_a_client_that_closes_its_side_gets_its_answer() {
    let server = serve(Settings::default());
    let body = endless(json!({ "max_tokens": 300 }));
    let reply = half_closed(&server, "POST", CHAT, &body.to_string());
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("\"finish_reason\":\"length\""));
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let reply = half_closed(&server, "POST", CHAT, &streamed.to_string());
    assert!(reply.contains("data: [DONE]"), "{reply}");
    let models = half_closed(&server, "GET", "/v1/models", "");
    assert!(models.contains("context_length"), "{models}");
    // While it waits for its turn as well.
    let mut first = server.stream_chat(&endless(json!({})));
    first.until_text();
    let address = server.address;
    let waiting = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let body = endless(json!({ "max_tokens": 2 })).to_string();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
        write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    });
    server.wait_for(1, 1);
    drop(first);
    assert!(waiting.join().unwrap().contains("\"completion_tokens\":2"));
}

#[test]
fn a_client_that_is_gone_is_told_from_one_that_closed_its_side() {
    let server = serve(Settings::default());
    let mut first = server.stream_chat(&endless(json!({})));
    first.until_text();
    let mut stream = server.connect();
    let body = endless(json!({})).to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    server.wait_for(1, 1);
    // Now it is gone: it leaves the queue although nothing flows.
    drop(stream);
    server.wait_for(1, 0);
}

#[test]
fn a_body_that_is_cut_off_is_no_request() {
    let server = serve(Settings::default());
    let mut stream = server.connect();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
    write!(stream, "{head}Content-Length: 100\r\n\r\n{{").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut reply = String::new();
    // Closed at once, with a word or without.
    stream.read_to_string(&mut reply).unwrap();
    assert!(!reply.starts_with("HTTP/1.1 200"), "{reply}");
}

#[test]
fn a_request_that_takes_too_long_ends_with_an_error() {
    let limit = Some(Duration::from_millis(300));
    let server = serve(Settings { request_timeout: limit, ..Settings::default() });
    let whole = server.post(CHAT, &endless(json!({})));
    assert_eq!(whole.json()["error"]["code"], "request_timeout");
    let mut events = server.stream_chat(&endless(json!({})));
    let error = loop {
        let event = events.next();
        if !event["error"].is_null() {
            break event["error"].clone();
        }
    };
    assert_eq!(error["code"], "request_timeout");
    assert!(error["message"].as_str().unwrap().contains("0.3 s"));
    assert_eq!(events.data(), None);
    server.wait_for(0, 0);
}

#[test]
fn r74_comments_tell_how_far_the_prompt_is_read() {
    let settings = Settings { heartbeat: Duration::from_millis(1), ..Settings::default() };
    let server = serve(settings);
    let long = json!([{ "role": "user", "content": "x".repeat(4000) }]);
    let mut events = server.stream_chat(&ask(json!({ "messages": long, "max_tokens": 1 })));
    let mut seen = Vec::new();
    while let Some(line) = events.line() {
        if line.contains("finish_reason\":\"length") {
            break;
        }
        if let Some(read) = line.strip_prefix(": prefill ") {
            let (read, rest) = read.split_once('/').unwrap();
            let total = rest.strip_suffix(" tokens").unwrap().parse::<usize>().unwrap();
            assert!(total > 4000, "{line}");
            seen.push(read.parse::<usize>().unwrap());
        }
    }
    assert!(seen.len() > 2 && seen.is_sorted() && seen[0] < *seen.last().unwrap(), "{seen:?}");
}

#[test]
fn lenient_requests_have_their_unsupported_fields_listed() {
    let server = serve_script(&[&["</think>yes"]], Settings::default());
    let body = ask(json!({
        "audio": { "voice": "x" }, "no_such_field": 1, "stream_options": null,
        "prediction": {}, "chat_template_kwargs": { "moo": 1 },
        "tools": [{ "type": "web_search" }],
        "messages": [{ "role": "user", "content": "q", "cache": true }],
    }))
    .to_string();
    let send = |server: &Served, prefer: &str| server.send("POST", CHAT, &[prefer], &body);
    assert_eq!(send(&server, "Prefer: handling=strict").status, 400);
    let reply = send(&server, "Prefer: respond-async, handling=lenient");
    assert_eq!(reply.status, 200, "{}", reply.body);
    let listed: Vec<&str> = reply.header("x-lily-ignored").unwrap().split(", ").collect();
    let fields = [
        "prediction",
        "audio",
        "no_such_field",
        "messages[0].cache",
        "chat_template_kwargs.moo",
        "tools[0]",
    ];
    for field in fields {
        assert!(listed.contains(&field), "{listed:?}");
    }
    assert_eq!(listed.len(), fields.len());
    // What is supported is checked all the same.
    let wrong = ask(json!({ "top_p": 2 })).to_string();
    let reply = server.send("POST", CHAT, &["Prefer: handling=lenient"], &wrong);
    assert_eq!(reply.json()["error"]["param"], "top_p");
    let lenient =
        serve_script(&[&["</think>yes"]], Settings { lenient: true, ..Settings::default() });
    assert_eq!(lenient.post(CHAT, &serde_json::from_str(&body).unwrap()).status, 200);
    assert_eq!(send(&lenient, "Prefer: handling=strict").status, 400);
}

#[test]
fn long_names_are_not_sent_back_whole() {
    let server = serve(Settings::default());
    let long = "é".repeat(100_000);
    for body in [
        ask(json!({ long.clone(): 1 })),
        ask(json!({ "model": long })),
        ask(json!({ "reasoning_effort": long })),
        ask(json!({ "chat_template_kwargs": { long.clone(): 1 } })),
        ask(json!({ "logit_bias": { long.clone(): 1 } })),
        ask(json!({ "messages": [{ "role": long, "content": "" }] })),
        ask(json!({ "verbosity": long })),
        ask(json!({ "tool_choice": long })),
    ] {
        let reply = server.post(CHAT, &body);
        assert!((400..500).contains(&reply.status));
        assert!(reply.body.len() < 1500, "{} bytes", reply.body.len());
    }
}

#[test]
fn metrics_count_what_happened() {
    let server = serve(Settings::default());
    // A letter, so that there is text.
    let reply = server.chat(&ask(json!({ "max_tokens": 3, "logit_bias": { "97": 100 } })));
    server.wait_for(0, 0);
    let prompt = &reply["usage"]["prompt_tokens"];
    server.post(CHAT, &ask(json!({ "top_p": 2 })));
    server.send("GET", "/nothing", &[], "");
    let metrics = server.send("GET", "/metrics", &[], "");
    assert!(metrics.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    for line in [
        format!("lily_prompt_tokens_total {prompt}"),
        "lily_requests_running 0".into(),
        "lily_requests_waiting 0".into(),
        "lily_time_to_first_token_seconds_count 1".into(),
        format!("lily_http_responses_total{{route=\"{CHAT}\",status=\"200\"}} 1"),
        format!("lily_http_responses_total{{route=\"{CHAT}\",status=\"400\"}} 1"),
        "lily_http_responses_total{route=\"none\",status=\"404\"} 1".into(),
    ] {
        assert!(metrics.body.lines().any(|l| l == line), "{line} is not in\n{}", metrics.body);
    }
}

#[test]
fn texts_and_ids_turn_into_each_other() {
    let server = serve(Settings::default());
    let text = "Grüße <think>";
    let reply = server.post("/tokenize", &json!({ "prompt": text, "return_token_strs": true }));
    let reply = reply.json();
    assert_eq!(reply["count"], "Grüße ".len() + 1);
    assert_eq!(reply["max_model_len"], CONTEXT);
    assert_eq!(reply["token_strs"].as_array().unwrap().last().unwrap(), "<think>");
    let back = server.post("/detokenize", &json!({ "tokens": reply["tokens"] })).json();
    assert_eq!(back["prompt"], text);
    let content = server.post("/tokenize", &json!({ "content": text })).json();
    assert_eq!(content["tokens"], reply["tokens"]);
    // A conversation counts as it does when it is answered.
    let body = ask(json!({}));
    let counted = server.post("/tokenize", &body).json();
    let usage = server.chat(&ask(json!({ "max_tokens": 1 })))["usage"].clone();
    assert_eq!(counted["count"], usage["prompt_tokens"]);
    for (path, body, param) in [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({ "prompt": 1 }), "prompt"),
        ("/tokenize", json!({ "prompt": "a", "x": 1 }), "x"),
        ("/tokenize", json!({ "prompt": "a", "messages": [] }), "messages"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({ "tokens": [512] }), "tokens[0]"),
        ("/detokenize", json!({ "tokens": "a" }), "tokens"),
    ] {
        let reply = server.post(path, &body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{body}");
    }
}

#[test]
fn the_model_list_tells_an_agent_what_it_needs() {
    let server = serve(Settings::default());
    let model = server.send("GET", "/v1/models", &[], "").json()["data"][0].clone();
    assert_eq!(model["max_output_tokens"], CONTEXT - 1);
    assert_eq!((&model["vision"], &model["tools"]), (&json!(false), &json!(true)));
    assert_eq!(model["tool_format"], "qwen-xml");
    let switches = model["thinking"]["switches"].as_array().unwrap();
    assert_eq!(switches.len(), 6);
    for switch in switches {
        // Each is a field that a request may have.
        let (field, rest) =
            switch.as_str().unwrap().split_once('.').unwrap_or((switch.as_str().unwrap(), ""));
        let value = match (field, rest) {
            (_, "enable_thinking") => json!({ "enable_thinking": false }),
            (_, "effort") => json!({ "effort": "none" }),
            (_, "enabled") => json!({ "enabled": false }),
            (_, "type") => json!({ "type": "disabled" }),
            ("reasoning_effort", _) => json!("none"),
            _ => json!(false),
        };
        let reply = server.chat(&endless(json!({ field: value, "max_tokens": 2 })));
        let details = &reply["usage"]["completion_tokens_details"];
        assert_eq!(details["reasoning_tokens"], 0, "{switch}");
    }
}

/// The fields that a document's schema gives an object.
fn fields<'a>(document: &'a Value, schema: &str) -> Vec<&'a String> {
    let schema = &document["components"]["schemas"][schema];
    schema["properties"].as_object().unwrap().keys().collect()
}

#[test]
fn the_openapi_document_names_the_fields_of_requests() {
    let server = serve(Settings::default());
    let document = server.send("GET", "/openapi.json", &[], "").json();
    assert_eq!(document["openapi"], "3.1.0");
    let chat = ask(json!({ "max_tokens": 1 }));
    let text = json!({ "prompt": "a", "max_tokens": 1 });
    let conversation = json!({ "messages": chat["messages"] });
    let ids = json!({ "tokens": [1] });
    for (schema, path, base, extra) in [
        ("ChatRequest", CHAT, chat, "prompt"),
        ("TextRequest", "/v1/completions", text, "messages"),
        ("TokenizeRequest", "/tokenize", conversation, "tokens"),
        ("DetokenizeRequest", "/detokenize", ids, "prompt"),
    ] {
        let known = fields(&document, schema);
        assert!(!known.iter().any(|field| *field == extra), "{schema}");
        for field in known.into_iter().chain([&extra.to_owned()]) {
            let mut body = base.clone();
            body[field] = json!({ "no such": [] });
            let error = server.post(path, &body).json()["error"].clone();
            let unknown = error["message"].as_str().is_some_and(|m| m.contains("is not a field"));
            let is_it = error["param"] == json!(field);
            assert_eq!(unknown && is_it, field == extra, "{schema}.{field}: {error}");
        }
    }
}
