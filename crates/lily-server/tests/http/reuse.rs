//! Requests go on where earlier ones have been, and say so; nothing else of them is seen.

// A failure in a helper fails the test.
#![allow(clippy::unwrap_used)]

use std::thread;

use crate::common::gate::{Gated, Switch};
use crate::common::{Served, ask, device, endless, going_on, model_with, run, serve_sessions};
use lily_model::engine::{CacheMemory, EngineOptions};
use lily_plan::Device;
use lily_server::{Server, Settings};
use serde_json::{Value, json};

const CONTEXT: usize = 4096;
/// Enough for all that a test keeps.
const CACHE: u64 = 256 << 20;

/// Chunks do not follow the clock: the same in every run.
fn settings() -> Settings {
    Settings { pause: std::time::Duration::MAX, ..Settings::default() }
}

fn serve_cached(device: Box<dyn Device>, sessions: usize, cache: u64) -> Served {
    let cache = CacheMemory::Bytes(cache);
    let base = EngineOptions { context: CONTEXT, chunk: 64, ..EngineOptions::default() };
    let server = Server::new("tiny", settings()).unwrap();
    let model = model_with(device, EngineOptions { batch: sessions, cache, ..base });
    server.handle().ready(model).unwrap();
    run(server)
}

fn cached(reply: &Value) -> u64 {
    let cached = &reply["usage"]["prompt_tokens_details"]["cached_tokens"];
    cached.as_u64().unwrap_or_else(|| panic!("a number, found {reply}"))
}

fn prompt_tokens(reply: &Value) -> u64 {
    reply["usage"]["prompt_tokens"].as_u64().unwrap()
}

/// Of the last event of a stream that tells usage.
fn streamed(server: &Served, path: &str, body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    server.stream(path, &body).rest().pop().unwrap()
}

fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

fn metric(server: &Served, name: &str) -> u64 {
    let text = server.send("GET", "/metrics", &[], "").body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
}

/// R79: always a number, the same in both modes.
#[test]
fn r79_cached_tokens_are_told_streamed_or_not() {
    let server = serve_cached(Box::new(device()), 1, CACHE);
    let content = "The same question. ".repeat(10);
    let mut chat = ask(json!({ "messages": [message("user", &content)] }));
    let mut text = json!({ "prompt": content.repeat(2) });
    for body in [&mut chat, &mut text] {
        body["max_tokens"] = json!(4);
        body["temperature"] = json!(0);
    }
    for (path, body) in [("/v1/chat/completions", chat), ("/v1/completions", text)] {
        let first = server.post(path, &body).json();
        assert_eq!(cached(&first), 0);
        let second = server.post(path, &body).json();
        let third = streamed(&server, path, &body);
        assert!(cached(&second) + 100 > prompt_tokens(&second), "{second}");
        assert!(cached(&second) < prompt_tokens(&second), "{second}");
        assert_eq!(cached(&second), cached(&third), "{third}");
        let choice = |reply: &Value| reply["choices"][0].clone();
        assert_eq!(choice(&first), choice(&second));
    }
    let off = serve_cached(Box::new(device()), 1, 0);
    let body = ask(json!({ "max_tokens": 4 }));
    for _ in 0..2 {
        assert_eq!(cached(&off.chat(&body)), 0);
        assert_eq!(cached(&streamed(&off, "/v1/chat/completions", &body)), 0);
    }
}

/// R1, R5, R6, R7: a thought is left out of the history, so the next prompt parts where it began.
#[test]
fn r1_turns_whose_thoughts_are_left_out_go_on_in_front_of_the_last_answer() {
    let server = serve_cached(Box::new(device()), 1, CACHE);
    let cold = serve_cached(Box::new(device()), 1, 0);
    for thinking in [true, false] {
        let bias = going_on(json!({}));
        let system = format!("You are {thinking}. {}", "Be brief. ".repeat(30));
        let mut messages = vec![message("system", &system)];
        let mut before = 0;
        for turn in 0..3 {
            messages.push(message("user", &format!("Question {turn}: {}", "why? ".repeat(8))));
            let body = ask(json!({
                "messages": messages, "max_tokens": 40, "temperature": 0,
                "enable_thinking": thinking, "logit_bias": bias, "thinking_budget": 16,
            }));
            let reply = server.chat(&body);
            let want = cold.chat(&body);
            assert_eq!(reply["choices"][0]["message"], want["choices"][0]["message"], "{turn}");
            let (kept, tokens) = (cached(&reply), prompt_tokens(&reply));
            if turn > 0 {
                // All of the last prompt but the opening of its answer.
                assert!(kept + 100 >= before && kept >= 256, "turn {turn}: {kept} of {before}");
            }
            before = tokens;
            let content = reply["choices"][0]["message"]["content"].clone();
            messages.push(json!({ "role": "assistant", "content": content }));
        }
        // Asked again, and asked in another way: the history is there.
        let again = ask(json!({
            "messages": messages[..6], "max_tokens": 1, "enable_thinking": thinking,
        }));
        let again = server.chat(&again);
        assert!(cached(&again) + 100 >= prompt_tokens(&again), "{again}");
        messages[5] = message("user", "Something else?");
        let edited = server.chat(&ask(json!({ "messages": messages[..6], "max_tokens": 1 })));
        assert!(cached(&edited) + 120 >= prompt_tokens(&edited), "{edited}");
        // R5: another conversation with the same system prompt.
        let other = [messages[0].clone(), message("user", "A new one.")];
        let other = server.chat(&ask(json!({ "messages": other, "max_tokens": 1 })));
        assert!(cached(&other) >= 256, "{other}");
    }
}

/// A prompt is read once, however many choices it has, also if it was never seen before.
#[test]
fn choices_of_a_request_read_its_prompt_once_and_are_those_of_single_requests() {
    let server = serve_cached(Box::new(device()), 4, CACHE);
    let cold = serve_cached(Box::new(device()), 1, 0);
    let content = "A long question. ".repeat(40);
    let body = |more: Value| {
        let mut body = endless(json!({ "messages": [message("user", &content)], "max_tokens": 12,
            "temperature": 1, "seed": 7 }));
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        body
    };
    let several = server.chat(&body(json!({ "n": 4 })));
    assert_eq!(cached(&several), 0, "the first choice has read it");
    let reused = metric(&server, "lily_cached_prompt_tokens_total");
    assert!(reused + 4 * 64 > 3 * prompt_tokens(&several), "{reused}");
    for k in 0..4 {
        let one = cold.chat(&body(json!({ "seed": 7 + k })));
        let message = &several["choices"][k as usize]["message"];
        assert_eq!(*message, one["choices"][0]["message"], "choice {k}");
    }
}

/// R31: code words of sixteen clients at once that share their beginning.
#[test]
fn sixteen_clients_with_one_system_prompt_get_what_each_gets_alone() {
    let alone = serve_sessions(Box::new(device()), CONTEXT, 1, settings());
    let system = "You keep code words. ".repeat(12);
    let questions: Vec<Value> = (0..16u32)
        .map(|index| {
            let word = format!("{:08x}", index.wrapping_mul(0x9e37_79b9) ^ 0x5bd1_e995);
            let padding = "and so on ".repeat((index % 5) as usize);
            let text = format!("The code word is {word}, {padding}what is the code word?");
            ask(json!({
                "messages": [message("system", &system), message("user", &text)],
                "max_tokens": 10 + index, "temperature": index % 2, "seed": index,
                "enable_thinking": index.is_multiple_of(3),
            }))
        })
        .collect();
    let text = |reply: &Value| reply["choices"][0].clone();
    let want: Vec<Value> = questions.iter().map(|body| text(&alone.chat(body))).collect();
    // All at once, then again behind what is kept, with and without room for all of it.
    for (sessions, cache) in [(16, CACHE), (3, 3 << 20)] {
        let switch = Switch::default();
        let server = serve_cached(Gated::new(&switch), sessions, cache);
        for round in 0..2 {
            switch.shut();
            let replies: Vec<Value> = thread::scope(|scope| {
                let server = &server;
                let send = |body| scope.spawn(move || server.chat(body));
                let sent: Vec<_> = questions.iter().map(send).collect();
                server.wait_for_all(16);
                switch.open();
                sent.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let got: Vec<Value> = replies.iter().map(text).collect();
            assert_eq!(got, want, "{sessions} sessions, {cache} bytes, round {round}");
            if cache == CACHE {
                let read: u64 = replies.iter().map(|r| prompt_tokens(r) - cached(r)).sum();
                let all: u64 = replies.iter().map(prompt_tokens).sum();
                let most = if round == 0 { all / 2 } else { all / 3 };
                assert!(read < most, "{read} of {all} tokens were read in round {round}");
            }
            assert!(metric(&server, "lily_memory_bytes{kind=\"cache\"}") <= cache);
        }
    }
}

/// R74, R75: a client that goes away at 80 % of its prompt, and asks again.
#[test]
fn r75_a_retry_reads_only_what_the_first_try_has_not_read() {
    let switch = Switch::default();
    let server = serve_cached(Gated::new(&switch), 1, CACHE);
    let content = "x".repeat(1250);
    let mut body = ask(json!({ "messages": [message("user", &content)], "max_tokens": 3 }));
    body["temperature"] = json!(0);
    // 16 chunks of 64 of about 1,280 tokens, then no more.
    switch.let_pass(Some(16));
    let mut first = server.stream_chat(&body);
    while !first.line().unwrap().contains("prefill 1024/") {}
    drop(first);
    switch.open();
    server.wait_for(0, 0);
    let retry = server.chat(&body);
    // And what was read until the server saw that the client had gone.
    assert!(cached(&retry) >= 1024, "{retry}");
    let cold = serve_cached(Box::new(device()), 1, 0).chat(&body);
    assert_eq!(retry["choices"], cold["choices"]);
}

/// R18, R19: the limit holds, and memory is told.
#[test]
fn metrics_tell_what_is_kept_and_the_limit_holds() {
    let limit = 2 << 20;
    let server = serve_cached(Box::new(device()), 2, limit);
    for index in 0..30 {
        let content = format!("{index} {}", "many words ".repeat(20 + index % 7));
        let body = ask(json!({ "messages": [message("user", &content)], "max_tokens": 3 }));
        for _ in 0..2 {
            server.chat(&body);
        }
        assert!(metric(&server, "lily_memory_bytes{kind=\"cache\"}") <= limit);
    }
    assert_eq!(metric(&server, "lily_cache_limit_bytes"), limit);
    assert!(metric(&server, "lily_cache_states") > 0);
    let event =
        |name: &str| metric(&server, &format!("lily_cache_events_total{{event=\"{name}\"}}"));
    assert!(event("hit") >= 30 && event("miss") >= 1, "{} {}", event("hit"), event("miss"));
    assert!(event("evicted") > 0 && event("saved") > event("evicted"));
    assert!(metric(&server, "lily_cached_prompt_tokens_total") > 30 * 150);
}
