//! What is refused, and how.

use crate::common::{Reply, Served, ask, serve};
use lily_server::{Secret, Settings};
use serde_json::{Value, json};

/// Checks the shape of an error; returns it.
fn error(reply: &Reply, status: u16) -> Value {
    assert_eq!(reply.status, status, "{}", reply.body);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let error = reply.json()["error"].clone();
    let fields: Vec<&String> = error.as_object().expect("an object").keys().collect();
    assert_eq!(fields, ["message", "type", "param", "code"]);
    assert!(!error["message"].as_str().expect("a text").is_empty());
    error
}

#[test]
fn fields_that_are_not_supported_are_named() {
    let server = serve(Settings::default());
    let tool = json!([{ "type": "function", "function": { "name": "f" } }]);
    for (field, value) in [
        ("n", json!(33)),
        ("functions", tool.clone()),
        ("tool_choice", json!("any")),
        ("function_call", json!("auto")),
        ("response_format", json!("json")),
        ("structured_outputs", json!(1)),
        ("logprobs", json!("yes")),
        ("top_logprobs", json!(2)),
        ("modalities", json!(["text", "audio"])),
        ("audio", json!({ "voice": "x" })),
        ("prediction", json!({})),
        ("web_search_options", json!({})),
        ("verbosity", json!("low")),
        ("temperature", json!("hot")),
        ("messages", json!([])),
        ("no_such_field", json!(1)),
    ] {
        let reply =
            server.post("/v1/chat/completions", &ask(json!({ "tools": tool, field: value })));
        let error = error(&reply, 400);
        assert_eq!(error["param"], field);
        assert!(error["message"].as_str().unwrap().contains(field));
    }
    for (field, value) in [
        ("echo", json!("yes")),
        ("suffix", json!("x")),
        ("best_of", json!(2)),
        ("logprobs", json!(21)),
        ("prompt", json!("")),
        ("prompt", json!(["a", ""])),
        ("prompt", json!(vec!["a"; 33])),
        ("prompt", json!({})),
        ("messages", json!([])),
    ] {
        let mut body = json!({ "prompt": "a" });
        body[field] = value;
        assert_eq!(error(&server.post("/v1/completions", &body), 400)["param"], field);
    }
    for (prompt, item) in [
        (json!(["a", 1]), "prompt[1]"),
        (json!([[1], [2, "b"]]), "prompt[1][1]"),
        (json!([1, 512]), "prompt[1]"),
    ] {
        let reply = server.post("/v1/completions", &json!({ "prompt": prompt }));
        assert_eq!(error(&reply, 400)["param"], item);
    }
}

#[test]
fn r39_an_image_is_refused_by_its_place_in_every_role() {
    let server = serve(Settings::default());
    let image = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORw0KGgo=" } });
    let content = json!([{ "type": "text", "text": "What is this?" }, image]);
    let call =
        json!({ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}" } });
    for (messages, at) in [
        (json!([{ "role": "user", "content": content }]), "messages[0].content[1].type"),
        (
            json!([{ "role": "user", "content": "Look." }, { "role": "assistant", "tool_calls": [call] },
                { "role": "tool", "tool_call_id": "c", "content": content }]),
            "messages[2].content[1].type",
        ),
    ] {
        let reply = server.post("/v1/chat/completions", &ask(json!({ "messages": messages })));
        let error = error(&reply, 400);
        assert_eq!(error["param"], at);
        assert!(error["message"].as_str().unwrap().contains("text only"));
    }
}

#[test]
fn values_that_ask_for_nothing_pass() {
    let server = serve(Settings::default());
    server.chat(&ask(json!({
        "n": 1, "tools": [], "tool_choice": "none", "response_format": { "type": "text" },
        "logprobs": false, "modalities": ["text"], "stop": null, "seed": null, "max_tokens": 1,
    })));
}

#[test]
fn r86_other_models_are_not_served() {
    let server = serve(Settings::default());
    for name in ["gpt-4o", "someone/else", "../../etc", ""] {
        let reply = server.post("/v1/chat/completions", &ask(json!({ "model": name })));
        assert_eq!(error(&reply, 404)["code"], "model_not_found");
    }
}

#[test]
fn bad_bodies_routes_and_methods_have_the_same_shape() {
    let server = serve(Settings { body_limit: 1000, ..Settings::default() });
    let chat = "/v1/chat/completions";
    for body in ["", "{", "[1]", "{\"messages\": [}"] {
        assert_eq!(error(&server.send("POST", chat, &[], body), 400)["code"], "invalid_json");
    }
    let deep = format!("{{\"messages\": {}{}}}", "[".repeat(200), "]".repeat(200));
    error(&server.send("POST", chat, &[], &deep), 400);
    let large = server.send("POST", chat, &[], &"x".repeat(1001));
    assert_eq!(error(&large, 413)["code"], "body_too_large");
    let unknown = server.send("GET", "/v2/nothing", &[], "");
    assert_eq!(error(&unknown, 404)["code"], "unknown_route");
    let message = error(&unknown, 404)["message"].to_string();
    assert!(message.contains("/openapi.json"), "{message}");
    let method = server.send("GET", chat, &[], "");
    assert_eq!(error(&method, 405)["code"], "method_not_allowed");
    assert_eq!(method.header("allow"), Some("POST"));
    let message = |reply| error(reply, 405)["message"].as_str().unwrap().to_owned();
    assert_eq!(message(&method), format!("{chat} does not answer GET; use POST"));
    let method = server.send("POST", "/v1/models", &[], "{}");
    assert_eq!(error(&method, 405)["code"], "method_not_allowed");
    assert_eq!(message(&method), "/v1/models does not answer POST; use GET");
    for (name, status, code) in [
        // Not UTF-8; what is no escape at all is part of the name.
        ("%ff", 400, "invalid_path"),
        ("a%c3", 400, "invalid_path"),
        ("%zz", 404, "model_not_found"),
        ("a%2", 404, "model_not_found"),
    ] {
        let reply = server.send("GET", &format!("/v1/models/{name}"), &[], "");
        assert_eq!(error(&reply, status)["code"], code, "{name}");
    }
    for (method, path) in [("GET", "/%zz"), ("DELETE", "/nothing"), ("GET", "//"), ("BREW", "/v1")]
    {
        assert_eq!(error(&server.send(method, path, &[], ""), 404)["code"], "unknown_route");
    }
    let options = server.send("OPTIONS", chat, &[], "");
    assert_eq!(error(&options, 405)["code"], "method_not_allowed");
    assert!(message(&options).ends_with("use the method in the header `allow`"));
    assert_eq!(options.header("allow"), Some("POST"));
}

#[test]
fn compressed_bodies_are_refused() {
    let server = serve(Settings::default());
    let body = ask(json!({ "max_tokens": 1 })).to_string();
    let send = |encoding: &str| server.send("POST", "/v1/chat/completions", &[encoding], &body);
    for encoding in ["gzip", "br", "identity, gzip", "x"] {
        let reply = send(&format!("Content-Encoding: {encoding}"));
        let error = error(&reply, 415);
        assert_eq!(error["code"], "unsupported_encoding");
        assert!(error["message"].as_str().unwrap().contains(encoding));
    }
    assert_eq!(send("Content-Encoding: identity").status, 200);
}

#[test]
fn keys_that_are_given_twice_are_named() {
    let server = serve(Settings::default());
    for (body, param) in [
        (r#"{"messages":[{"role":"user","content":"a"}],"seed":1,"seed":2}"#, "seed"),
        (r#"{"messages":[{"role":"user","content":"a","role":"user"}]}"#, "messages[0].role"),
    ] {
        let reply = server.send("POST", "/v1/chat/completions", &[], body);
        let error = error(&reply, 400);
        assert_eq!(error["param"], param);
        assert!(error["message"].as_str().unwrap().contains("twice"));
    }
}

#[test]
fn template_variables_are_those_that_the_template_reads() {
    let server = serve(Settings::default());
    // In the template's text, but not read from the request; or the engine's own.
    for name in ["namespace", "raise_exception", "range", "loop", "content", "messages", "message"]
    {
        let reply = server.post(
            "/v1/chat/completions",
            &ask(json!({ "chat_template_kwargs": { name: 1 }, "max_tokens": 1 })),
        );
        assert_eq!(error(&reply, 400)["param"], format!("chat_template_kwargs.{name}"));
    }
}

#[test]
fn the_words_say_what_is_wrong() {
    let server = serve(Settings::default());
    for (more, words) in [
        (json!({ "messages": [] }), "`messages` is empty"),
        (json!({ "stop": vec!["a"; 17] }), "17 strings"),
        (json!({ "stop": "a".repeat(2000) }), "2000 bytes"),
    ] {
        let error = error(&server.post("/v1/chat/completions", &ask(more)), 400);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn with_a_key_only_health_answers_without_it() {
    let server = serve(Settings { api_key: Some(Secret::new("secret")), ..Settings::default() });
    let get = |path: &str, headers: &[&str]| server.send("GET", path, headers, "");
    for headers in [vec![], vec!["Authorization: Bearer wrong"], vec!["Authorization: secret"]] {
        let reply = get("/v1/models", &headers);
        assert_eq!(error(&reply, 401)["code"], "invalid_api_key");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(get("/v1/nothing", &[]).status, 401);
    assert_eq!(get("/v1/models", &["Authorization: Bearer secret"]).status, 200);
    assert_eq!(get("/health", &[]).status, 200);
}

#[test]
fn foreign_hosts_and_pages_are_refused_unless_allowed() {
    let status =
        |server: &Served, header: &str| server.send("GET", "/health", &[header], "").status;
    let closed = serve(Settings::default());
    assert_eq!(status(&closed, "Host: evil.example:8080"), 403);
    assert_eq!(status(&closed, "Origin: https://evil.example"), 403);
    assert_eq!(status(&closed, "Host: 127.0.0.1:8080"), 200);
    // The client of these tests sends no other one beside it.
    assert_eq!(status(&closed, "Host: localhost\r\nHost: localhost"), 400);
    assert_eq!(status(&closed, "host:"), 403);

    let settings = Settings {
        hosts: vec!["box.lan".into()],
        origins: vec!["http://app.local".into()],
        ..Settings::default()
    };
    let open = serve(settings);
    assert_eq!(status(&open, "Host: box.lan:8080"), 200);
    assert_eq!(status(&open, "Origin: https://evil.example"), 403);
    let reply = open.send("GET", "/health", &["Origin: http://app.local"], "");
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("access-control-allow-origin"), Some("http://app.local"));

    let ask_first = [
        "Origin: http://app.local",
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization, content-type",
    ];
    let preflight = open.send("OPTIONS", "/v1/chat/completions", &ask_first, "");
    assert_eq!(preflight.status, 204);
    let allowed = preflight.header("access-control-allow-headers");
    assert_eq!(allowed, Some("authorization, content-type"));
    let refused = closed.send("OPTIONS", "/v1/chat/completions", &ask_first, "");
    assert_eq!(error(&refused, 403)["code"], "origin_not_allowed");
}
