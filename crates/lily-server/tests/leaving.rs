//! Clients that leave at any time. In a process of its own, whose memory is measured.

// A failure in a helper fails the test.
#![allow(clippy::unwrap_used)]

#[path = "http/common/mod.rs"]
mod common;

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use common::{Served, ask, endless, serve};
use lily_server::Settings;
use serde_json::{Value, json};

const ROUNDS: usize = 50;
/// Rounds until every part of the program has been used.
const WARM_UP: usize = 10;
/// An endless answer and the long prompt take far longer.
const AT_ONCE: Duration = Duration::from_secs(30);
/// What a round could keep for good, a sequence or a reply, would be more in so many rounds.
const GROWTH: u64 = 16 << 20;

/// Where a request is when its client leaves.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Queue,
    Prefill,
    Thinking,
    Answer,
}

const PHASES: [Phase; 4] = [Phase::Queue, Phase::Prefill, Phase::Thinking, Phase::Answer];

/// The same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// Bytes of this process in memory; `None` where the system does not say.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(statm.split(' ').nth(1)?.parse::<u64>().ok()? * 4096)
}

/// Sends a chat and does not read.
fn begin(server: &Served, body: &Value) -> TcpStream {
    let mut stream = server.connect();
    let text = body.to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n{text}", text.len()).unwrap();
    stream
}

#[test]
fn fifty_clients_that_leave_at_random_cost_nothing() {
    let server = serve(Settings::default());
    let long = json!([{ "role": "user", "content": "x".repeat(20_000) }]);
    let mut random = Random(1);
    let mut before = None;
    for round in 0..ROUNDS {
        let phase = PHASES[random.below(4) as usize];
        let mut body = match phase {
            Phase::Queue | Phase::Thinking => endless(json!({})),
            Phase::Answer => endless(json!({ "enable_thinking": false })),
            Phase::Prefill => ask(json!({ "messages": long })),
        };
        body["stream"] = json!(random.below(2) == 0);
        let in_front = matches!(phase, Phase::Queue).then(|| {
            let stream = begin(&server, &endless(json!({ "stream": true })));
            server.wait_for(1, 0);
            stream
        });
        let leaving = begin(&server, &body);
        server.wait_for(1, u64::from(in_front.is_some()));
        thread::sleep(Duration::from_millis(random.below(30)));
        drop(leaving);
        if in_front.is_some() {
            server.wait_for(1, 0);
        }
        drop(in_front);
        let start = Instant::now();
        // Greedy: a random choice could be a stop token.
        let reply = server.chat(&ask(json!({ "max_tokens": 2, "temperature": 0 })));
        assert_eq!(reply["usage"]["completion_tokens"], 2);
        assert!(start.elapsed() < AT_ONCE, "round {round}, {phase:?}: {:?}", start.elapsed());
        if round == WARM_UP {
            before = resident_bytes();
        }
    }
    server.wait_for(0, 0);
    if let (Some(before), Some(after)) = (before, resident_bytes()) {
        let grown = after.saturating_sub(before);
        assert!(grown < GROWTH, "{grown} bytes more than after {WARM_UP} rounds");
    }
}
