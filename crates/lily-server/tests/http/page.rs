//! The chat page, as a client sees it. `scripts/check-page` runs it in a browser.

// A failure in a helper fails the test.
#![allow(clippy::unwrap_used)]

use crate::common::{ask, run, serve_script};
use lily_server::{Secret, Server, Settings};

/// The files that the page names.
fn parts(page: &str) -> Vec<&str> {
    page.split('"').filter(|word| word.starts_with("page/")).collect()
}

#[test]
fn r85_the_page_needs_no_key_and_allows_itself_nothing_else() {
    let settings = Settings { api_key: Some(Secret::new("secret")), ..Settings::default() };
    let server = serve_script(&[&["</think>yes"]], settings);
    let page = server.send("GET", "/", &[], "");
    let parts = parts(&page.body);
    assert!(parts.len() >= 3, "{parts:?}");
    for path in
        std::iter::once(String::from("/")).chain(parts.iter().map(|part| format!("/{part}")))
    {
        let file = server.send("GET", &path, &[], "");
        assert_eq!(file.status, 200, "{path}");
        let policy = file.header("content-security-policy").unwrap();
        for rule in ["default-src 'none'", "frame-ancestors 'none'", "trusted-types 'none'"] {
            assert!(policy.contains(rule), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{path}: {policy}");
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"), "{path}");
        // A foreign name gets no page either.
        assert_eq!(server.send("GET", &path, &["Host: evil.example"], "").status, 403, "{path}");
    }
    // Beside it nothing is open.
    assert_eq!(server.send("GET", "/page/other.js", &[], "").status, 401);
    assert_eq!(server.send("GET", "/v1/models", &[], "").status, 401);
}

#[test]
fn r85_the_page_asks_its_own_server_and_pages_from_elsewhere_do_not() {
    let server = serve_script(&[&["</think>yes"]], Settings::default());
    let from = |origin: &str| {
        let host = format!("Host: {}", server.address);
        let origin = format!("Origin: {origin}");
        let body = ask(serde_json::json!({})).to_string();
        server.send("POST", "/v1/chat/completions", &[&host, &origin], &body).status
    };
    assert_eq!(from(&format!("http://{}", server.address)), 200);
    // Another server of this machine.
    assert_eq!(from("http://127.0.0.1:1"), 403);
    assert_eq!(from(&format!("http://localhost:{}", server.address.port())), 403);
    assert_eq!(from("null"), 403);
}

#[test]
fn the_page_is_there_before_the_model() {
    let server = run(Server::new("tiny", Settings::default()).unwrap());
    assert_eq!(server.send("GET", "/", &[], "").status, 200);
    let models = server.send("GET", "/v1/models", &[], "");
    assert_eq!(models.json()["error"]["code"], "model_loading");
}

#[test]
fn r73_the_root_answers_those_who_only_look() {
    let server = serve_script(&[&["</think>yes"]], Settings::default());
    let mut stream = server.connect();
    let request = "HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let mut reply = String::new();
    std::io::Read::read_to_string(&mut stream, &mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200") && reply.ends_with("\r\n\r\n"), "{reply}");
}
