//! When work starts and ends: order, heartbeats, clients that leave, shutdown.

mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{Events, Served, ask, endless, serve};
use lily_server::Settings;
use serde_json::{Value, json};

/// An endless answer takes far longer.
const SOON: Duration = Duration::from_secs(10);

/// A request that is answered quickly once it runs.
fn short() -> Value {
    ask(json!({ "max_tokens": 2 }))
}

/// Starts an endless answer and waits until text flows.
fn occupy(server: &Served) -> Events {
    let mut events = server.stream_chat(&endless(json!({})));
    while events.next()["choices"][0]["delta"]["reasoning_content"].is_null() {}
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
    assert_eq!(third.status, 503);
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
        assert_eq!(second.line().unwrap(), ": working");
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

/// Bytes of this process in memory; `None` where the system does not say.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(statm.split(' ').nth(1)?.parse::<u64>().ok()? * 4096)
}

#[test]
fn fifty_clients_that_leave_at_random_cost_nothing() {
    let server = serve(Settings::default());
    let prompt = json!([{ "role": "user", "content": "x".repeat(2000) }]);
    let mut state: u64 = 1;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    let mut before = None;
    for round in 0..50 {
        let body = match random(3) {
            0 => endless(json!({})),
            1 => endless(json!({ "enable_thinking": false })),
            _ => endless(json!({ "messages": prompt })),
        };
        // Half of them wait behind another one.
        let other = (random(2) == 0).then(|| server.stream_chat(&endless(json!({}))));
        let mut leaving = server.stream_chat(&body);
        if other.is_none() {
            for _ in 0..random(4) {
                leaving.next();
            }
        }
        thread::sleep(Duration::from_millis(random(20)));
        drop(leaving);
        drop(other);
        let start = Instant::now();
        server.chat(&short());
        assert!(start.elapsed() < SOON, "round {round}: {:?}", start.elapsed());
        if round == 10 {
            before = resident_bytes();
        }
    }
    server.wait_for(0, 0);
    if let (Some(before), Some(after)) = (before, resident_bytes()) {
        let grown = after.saturating_sub(before);
        // The other tests of this file run in the same process; what a round could keep for good,
        // a sequence's memory, is larger than their share.
        assert!(grown < 64 << 20, "{grown} bytes more than after ten rounds");
    }
}

#[test]
fn the_running_request_finishes_before_the_server_stops() {
    let mut server = serve(Settings::default());
    let mut events = server.stream_chat(&endless(json!({ "max_tokens": 200 })));
    events.next();
    server.wait_for(1, 0);
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
