//! Several clients at once: each gets what it would get alone.

// A failure in a helper fails the test.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::thread;
use std::time::Duration;

use crate::common::gate::{Gated, Switch};
use crate::common::{CONTEXT, Served, ask, device, endless, serve_sessions};
use lily_server::Settings;
use serde_json::{Value, json};

/// Long enough for what a test waits for on any machine.
const GRACE: Duration = Duration::from_secs(600);

/// A context for many sessions.
const SHORT: usize = 1024;

/// Chunks do not follow the clock: the same in every run.
fn settings() -> Settings {
    Settings { pause: Duration::MAX, ..Settings::default() }
}

/// The same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// A question with a code word of its own, short or over several chunks; greedy or with a seed.
fn question(random: &mut Random, index: u64) -> Value {
    let word = format!("{:08x}", random.below(1 << 32));
    let padding = "and so on ".repeat(random.below(20) as usize);
    let text = format!("The code word is {word}, {padding}what is the code word?");
    ask(json!({
        "messages": [{ "role": "user", "content": text }],
        "max_tokens": 20 + random.below(30),
        "temperature": index % 2,
        "seed": random.below(1000),
        "enable_thinking": index.is_multiple_of(3),
    }))
}

/// The choice of a reply that was streamed, as one that was not.
fn joined(events: &[Value]) -> Value {
    let text = |field: &str| -> String {
        events.iter().filter_map(|event| event["choices"][0]["delta"][field].as_str()).collect()
    };
    let last = events.last().unwrap();
    json!([text("reasoning_content"), text("content"), last["choices"][0]["finish_reason"]])
}

fn whole(reply: &Value) -> Value {
    let choice = &reply["choices"][0];
    let text = |field: &str| choice["message"][field].as_str().unwrap_or_default().to_owned();
    json!([text("reasoning_content"), text("content"), choice["finish_reason"]])
}

/// Sends all questions while the gate is shut, so that they run side by side once it is open.
fn at_once(server: &Served, switch: &Switch, questions: &[Value]) -> Vec<Value> {
    switch.shut();
    thread::scope(|scope| {
        let sent: Vec<_> = questions
            .iter()
            .enumerate()
            .map(|(index, body)| {
                scope.spawn(move || match index % 2 {
                    0 => whole(&server.chat(body)),
                    _ => joined(&server.stream_chat(body).rest()),
                })
            })
            .collect();
        server.wait_for_all(questions.len() as u64);
        switch.open();
        sent.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn sixteen_clients_at_once_get_what_each_gets_alone() {
    let alone = serve_sessions(Box::new(device()), SHORT, 1, settings());
    let mut random = Random(16);
    let questions: Vec<Value> = (0..16).map(|index| question(&mut random, index)).collect();
    let want: Vec<Value> = questions.iter().map(|body| whole(&alone.chat(body))).collect();
    let different: std::collections::HashSet<String> = want.iter().map(Value::to_string).collect();
    assert!(different.len() > 8, "texts that are alike would prove nothing: {want:?}");
    // One place for each, and fewer places than clients.
    for sessions in [16, 3] {
        let switch = Switch::default();
        let server = serve_sessions(Gated::new(&switch), SHORT, sessions, settings());
        assert_eq!(at_once(&server, &switch, &questions), want, "{sessions} sessions");
        server.wait_for(0, 0);
        assert_eq!(server.send("GET", "/health", &[], "").json()["sessions"], sessions);
    }
}

#[test]
fn choices_of_one_request_run_side_by_side_and_are_those_of_single_requests() {
    let switch = Switch::default();
    let server = serve_sessions(Gated::new(&switch), CONTEXT, 4, settings());
    let body = endless(json!({ "n": 4, "max_tokens": 20, "temperature": 1, "seed": 7 }));
    let several = server.chat(&body);
    for k in 0..4 {
        let one = endless(json!({ "max_tokens": 20, "temperature": 1, "seed": 7 + k }));
        let one = server.chat(&one);
        let message = &several["choices"][k as usize]["message"];
        assert_eq!(*message, one["choices"][0]["message"], "choice {k}");
    }
}

#[test]
fn r76_clients_that_leave_at_any_time_do_not_disturb_those_that_stay() {
    let switch = Switch::default();
    let server = serve_sessions(Gated::new(&switch), CONTEXT, 4, settings());
    let mut random = Random(76);
    let questions: Vec<Value> = (0..6).map(|index| question(&mut random, index)).collect();
    let want: Vec<Value> = questions.iter().map(|body| whole(&server.chat(body))).collect();
    let long = json!([{ "role": "user", "content": "x".repeat(3000) }]);
    let leaving: Vec<(Value, u64)> = (0..18)
        .map(|index| {
            let body = match index % 3 {
                0 => endless(json!({})),
                1 => endless(json!({ "enable_thinking": false })),
                _ => ask(json!({ "messages": long })),
            };
            (body, random.below(12))
        })
        .collect();
    thread::scope(|scope| {
        let staying: Vec<_> = questions
            .iter()
            .map(|body| scope.spawn(|| joined(&server.stream_chat(body).rest())))
            .collect();
        for (body, events) in &leaving {
            let server = &server;
            scope.spawn(move || {
                let mut stream = server.stream_chat(body);
                // The long prompts give nothing but the role and comments for a while.
                let events = if body["messages"][0]["content"] == "Hi" { *events } else { 1 };
                for _ in 0..events {
                    stream.next();
                }
            });
        }
        let got: Vec<Value> = staying.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(got, want);
    });
    server.wait_for(0, 0);
}

#[test]
fn r75_a_client_that_leaves_makes_room_while_others_run() {
    let server = serve_sessions(Box::new(device()), CONTEXT, 2, settings());
    let mut first = server.stream_chat(&endless(json!({})));
    first.until_text();
    let mut second = server.stream_chat(&endless(json!({ "enable_thinking": false })));
    second.next();
    let third = server.stream_chat(&endless(json!({ "seed": 3 })));
    server.wait_for(2, 1);
    // Out of the queue, and without a stream.
    let mut fourth = server.connect();
    let text = ask(json!({})).to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
    write!(fourth, "{head}Content-Length: {}\r\n\r\n{text}", text.len()).unwrap();
    server.wait_for(2, 2);
    drop(fourth);
    server.wait_for(2, 1);
    drop(second);
    server.wait_for(2, 0);
    drop(third);
    server.wait_for(1, 0);
    // The one that stayed goes on.
    first.until_text();
    drop(first);
    server.wait_for(0, 0);
}

#[test]
fn all_running_requests_finish_before_the_server_stops() {
    let switch = Switch::default();
    let settings = Settings { grace: GRACE, ..settings() };
    let mut server = serve_sessions(Gated::new(&switch), SHORT, 3, settings);
    switch.shut();
    let mut running: Vec<_> = (0..3)
        .map(|seed| server.stream_chat(&endless(json!({ "seed": seed, "max_tokens": 50 }))))
        .collect();
    server.wait_for_all(3);
    // The first reads a chunk, and then all of them are there.
    switch.let_pass(Some(1));
    server.wait_for(3, 0);
    let mut waiting = server.stream_chat(&ask(json!({})));
    waiting.next();
    server.wait_for(3, 1);
    server.shut_down();
    assert_eq!(waiting.next()["error"]["code"], "shutting_down");
    switch.open();
    for events in &mut running {
        let last = events.rest().pop().unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], "length");
    }
    server.join();
}

#[test]
fn what_does_not_finish_in_time_ends_with_an_error_for_everyone() {
    let settings = Settings { grace: Duration::from_millis(50), ..settings() };
    let mut server = serve_sessions(Box::new(device()), CONTEXT, 3, settings);
    let running: Vec<_> =
        (0..3).map(|seed| server.stream_chat(&endless(json!({ "seed": seed })))).collect();
    server.wait_for(3, 0);
    server.shut_down();
    for mut events in running {
        let error = loop {
            let event = events.next();
            if !event["error"].is_null() {
                break event["error"].clone();
            }
        };
        assert_eq!(error["code"], "shutting_down");
        assert_eq!(events.data(), None);
    }
    server.join();
}
