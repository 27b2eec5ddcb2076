//! A device that fails takes one request down, never the server.

use std::time::Instant;

use crate::common::gate::{
    ERROR, ERROR_ONCE, Gated, LOST, NOT_A_NUMBER, PANIC, PANIC_ONCE, SOUND, Switch,
};
use crate::common::{
    CONTEXT, Events, Served, THOUGHT_END, TIMEOUT, ask, endless, going_on, serve_device,
    serve_sessions,
};
use lily_server::Settings;
use serde_json::{Value, json};

const SHORT: usize = 1024;

/// Waits until `/health` says so.
fn wait_for_status(server: &Served, status: &str) -> Value {
    let start = Instant::now();
    loop {
        let health = server.send("GET", "/health", &[], "");
        let body = health.json();
        if body["status"] == status {
            assert_eq!(health.status, if status == "ok" { 200 } else { 503 });
            return body;
        }
        assert!(start.elapsed() < TIMEOUT, "still {body}");
        std::thread::yield_now();
    }
}

#[test]
fn a_fault_ends_one_request_and_the_next_one_works() {
    let switch = Switch::default();
    let server = serve_device(Gated::new(&switch), CONTEXT, Settings::default());
    // The bias has the host choose, from logits that it reads.
    let bias = going_on(json!({ THOUGHT_END: -100 }));
    let body = ask(json!({ "seed": 4, "max_tokens": 8, "logit_bias": bias }));
    let sound = server.chat(&body)["choices"].clone();
    for kind in [ERROR, PANIC, NOT_A_NUMBER] {
        switch.set(kind);
        // The headers were sent before the work began.
        let reply = server.post("/v1/chat/completions", &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(reply.json()["error"]["type"], "server_error");
        assert_eq!(reply.json()["error"]["code"], "internal_error");

        switch.set(SOUND);
        let mut events = server.stream_chat(&endless(json!({})));
        events.until_text();
        switch.set(kind);
        let error = loop {
            let event = events.next();
            if !event["error"].is_null() {
                break event["error"].clone();
            }
        };
        assert_eq!(error["code"], "internal_error");
        assert_eq!(events.data(), None, "nothing comes behind an error");

        switch.set(SOUND);
        assert_eq!(server.chat(&body)["choices"], sound, "after fault {kind}");
    }
}

/// Nothing tells it to stop: whoever watches the program starts it again.
#[test]
fn a_lost_device_ends_running_requests_with_an_error_and_then_the_server() {
    let switch = Switch::default();
    let mut server = serve_sessions(Gated::new(&switch), CONTEXT, 2, Settings::default());
    let mut streams = [0, 1].map(|_| server.stream_chat(&endless(json!({}))));
    streams.iter_mut().for_each(Events::until_text);
    switch.set(LOST);
    for events in &mut streams {
        let error = loop {
            let event = events.next();
            if !event["error"].is_null() {
                break event["error"].clone();
            }
        };
        assert_eq!(error["type"], "server_error");
    }
    server.join();
}

#[test]
fn a_device_that_stays_broken_is_said_and_tried_again_by_the_next_request() {
    let switch = Switch::default();
    let server = serve_device(Gated::new(&switch), CONTEXT, Settings::default());
    // The bias has the host choose, from logits that it reads.
    let bias = going_on(json!({ THOUGHT_END: -100 }));
    let body = ask(json!({ "seed": 4, "max_tokens": 8, "logit_bias": bias }));
    let sound = server.chat(&body)["choices"].clone();
    for kind in [ERROR, PANIC] {
        switch.set(kind);
        server.post("/v1/chat/completions", &body);
        let health = wait_for_status(&server, "failed");
        assert_eq!(health["error"]["code"], "engine_failed");
        if kind == ERROR {
            let message = health["error"]["message"].as_str().unwrap();
            assert!(message.contains("a broken wire"), "{message}");
        }
        let refused = server.post("/v1/chat/completions", &body).json();
        assert_eq!(refused["error"]["code"], "engine_failed");
        switch.set(SOUND);
        assert_eq!(server.chat(&body)["choices"], sound, "after fault {kind}");
        wait_for_status(&server, "ok");
    }
}

#[test]
fn a_fault_in_one_of_several_requests_leaves_the_others_alone() {
    for fault in [ERROR_ONCE, PANIC_ONCE] {
        let switch = Switch::default();
        let server = serve_sessions(Gated::new(&switch), SHORT, 4, Settings::default());
        let bodies: Vec<Value> = (0..4)
            .map(|seed| endless(json!({ "seed": seed, "max_tokens": 40, "temperature": seed % 2 })))
            .collect();
        let alone: Vec<Value> =
            bodies.iter().map(|body| server.chat(body)["choices"].clone()).collect();
        switch.shut();
        let streams: Vec<_> = std::thread::scope(|scope| {
            let sent: Vec<_> = bodies
                .iter()
                .map(|body| scope.spawn(|| server.post("/v1/chat/completions", body)))
                .collect();
            server.wait_for_all(4);
            // The first reads a chunk, and then all of them are there.
            switch.let_pass(Some(1));
            server.wait_for(4, 0);
            switch.set(fault);
            switch.open();
            sent.into_iter().map(|thread| thread.join().unwrap().json()).collect()
        });
        let failed: Vec<usize> =
            (0..4).filter(|&i| streams[i]["error"]["code"] == "internal_error").collect();
        assert_eq!(failed.len(), 1, "{streams:?}");
        for index in (0..4).filter(|index| *index != failed[0]) {
            assert_eq!(streams[index]["choices"], alone[index], "request {index}");
        }
        wait_for_status(&server, "ok");
        assert_eq!(server.chat(&bodies[failed[0]])["choices"], alone[failed[0]]);
    }
}
