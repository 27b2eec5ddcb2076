//! When work starts and ends: order, heartbeats, clients that leave, shutdown.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Events, Served, ask, endless, going_on, serve};
use lily_server::Settings;
use serde_json::{Value, json};

/// An endless answer takes far longer.
const SOON: Duration = Duration::from_secs(30);

/// A request that is answered quickly once it runs.
fn short() -> Value {
    ask(json!({ "max_tokens": 2 }))
}

/// Starts an endless answer and waits until text flows.
fn occupy(server: &Served) -> Events {
    let mut events = server.stream_chat(&endless(json!({})));
    events.until_text();
    events
}

#[test]
fn requests_run_in_the_order_of_their_arrival() {
    let server = Arc::new(serve(Settings::default()));
    let first = occupy(&server);
    let order = Arc::new(Mutex::new(Vec::new()));
    let threads: Vec<_> = (0..4)
        .map(|index| {
            let (of_thread, order) = (Arc::clone(&server), Arc::clone(&order));
            let thread = thread::spawn(move || {
                let mut events = of_thread.stream_chat(&endless(json!({ "max_tokens": 300 })));
                events.rest();
                order.lock().unwrap().push(index);
            });
            server.wait_for(1, index + 1);
            thread
        })
        .collect();
    drop(first);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
}

#[test]
fn a_full_queue_is_said_and_room_is_made_by_leaving() {
    let server = serve(Settings { queue: 1, ..Settings::default() });
    let _first = occupy(&server);
    let second = server.stream_chat(&short());
    server.wait_for(1, 1);
    let third = server.post("/v1/chat/completions", &short());
    assert_eq!(third.status, 429);
    assert_eq!(third.json()["error"]["code"], "queue_full");
    assert_eq!(third.header("retry-after"), Some("1"));
    drop(second);
    server.wait_for(1, 0);
    let _fourth = server.stream_chat(&short());
    server.wait_for(1, 1);
}

#[test]
fn a_waiting_stream_has_headers_a_role_and_comments() {
    let server = serve(Settings { heartbeat: Duration::from_millis(50), ..Settings::default() });
    let first = occupy(&server);
    let mut second = server.stream_chat(&short());
    assert!(second.head.to_ascii_lowercase().contains("content-type: text/event-stream"));
    assert_eq!(second.next()["choices"][0]["delta"]["role"], "assistant");
    for _ in 0..3 {
        assert_eq!(second.line().unwrap(), ": waiting");
    }
    drop(first);
    second.rest();
}

#[test]
fn work_ends_when_its_client_leaves() {
    let server = serve(Settings::default());
    let long_prompt = json!([{ "role": "user", "content": "x".repeat(60_000) }]);
    let leave_early = [
        // While thinking, while answering, and while the prompt is read.
        endless(json!({})),
        endless(json!({ "enable_thinking": false })),
        ask(json!({ "messages": long_prompt })),
    ];
    for body in leave_early {
        let mut events = server.stream_chat(&body);
        events.next();
        server.wait_for(1, 0);
        // Without a stream as well.
        let mut plain = server.connect();
        let text = body.to_string();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
        write!(plain, "{head}Content-Length: {}\r\n\r\n{text}", text.len()).unwrap();
        server.wait_for(1, 1);
        drop(events);
        server.wait_for(1, 0);
        drop(plain);
        let start = Instant::now();
        server.chat(&short());
        assert!(start.elapsed() < SOON, "{:?} after {body}", start.elapsed());
        server.wait_for(0, 0);
    }
}

#[test]
fn a_client_that_leaves_the_queue_is_skipped() {
    let server = serve(Settings::default());
    let first = occupy(&server);
    let second = server.stream_chat(&endless(json!({})));
    server.wait_for(1, 1);
    drop(second);
    server.wait_for(1, 0);
    drop(first);
    let start = Instant::now();
    server.chat(&short());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn a_client_that_leaves_is_noticed_although_no_text_flows() {
    let server = serve(Settings::default());
    // What may become the stop string is held back, and it is never complete.
    let body = ask(json!({
        "logit_bias": going_on(json!({ "97": 100 })), "enable_thinking": false, "temperature": 0,
        "stop": format!("{}b", "a".repeat(1023)),
    }));
    let events = server.stream_chat(&body);
    server.wait_for(1, 0);
    drop(events);
    let start = Instant::now();
    server.wait_for(0, 0);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn a_whole_reply_has_headers_at_once_and_line_ends_in_front() {
    let server = serve(Settings { heartbeat: Duration::from_millis(50), ..Settings::default() });
    let first = occupy(&server);
    let body = ask(json!({ "max_tokens": 2, "user": "me" }));
    // Returns with the head.
    let mut second = server.stream("/v1/chat/completions", &body);
    let head = second.head.to_ascii_lowercase();
    assert!(head.contains("content-type: application/json"), "{head}");
    assert!(head.contains("x-lily-ignored: user"), "{head}");
    server.wait_for(1, 1);
    for _ in 0..3 {
        assert_eq!(second.chunk().unwrap(), "\n");
    }
    drop(first);
    let mut text = String::new();
    while let Some(chunk) = second.chunk() {
        text.push_str(&chunk);
    }
    let reply: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(reply["usage"]["completion_tokens"], 2);
}

#[test]
fn a_whole_reply_that_fails_late_is_an_error_object() {
    let mut server = serve(Settings { grace: Duration::from_millis(50), ..Settings::default() });
    let _first = occupy(&server);
    let mut second = server.stream("/v1/chat/completions", &short());
    server.wait_for(1, 1);
    server.shut_down();
    let text = second.chunk().unwrap();
    let reply: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(reply["error"]["code"], "shutting_down");
    assert_eq!(second.chunk(), None);
    server.join();
}

#[test]
fn the_running_request_finishes_before_the_server_stops() {
    // As long as it takes.
    let grace = Duration::from_secs(600);
    let mut server = serve(Settings { grace, ..Settings::default() });
    let mut events = server.stream_chat(&endless(json!({ "max_tokens": 2000 })));
    events.until_text();
    let mut waiting = server.stream_chat(&short());
    waiting.next();
    server.wait_for(1, 1);
    server.shut_down();
    let refused = waiting.next();
    assert_eq!(refused["error"]["code"], "shutting_down");
    let last = events.rest().pop().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    server.join();
    assert!(std::net::TcpStream::connect(server.address).is_err());
}

#[test]
fn what_does_not_finish_in_time_ends_with_an_error() {
    let mut server = serve(Settings { grace: Duration::from_millis(100), ..Settings::default() });
    let mut events = occupy(&server);
    let start = Instant::now();
    server.shut_down();
    let last = loop {
        let event = events.next();
        if !event["error"].is_null() {
            break event;
        }
    };
    assert_eq!(last["error"]["code"], "shutting_down");
    assert_eq!(events.data(), None);
    server.join();
    assert!(start.elapsed() < SOON);
}
