//! Connections: silent, slow, many, and closed at shutdown.

// A failure in a helper fails the test.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{CONTEXT, Served, TIMEOUT, ask, device, endless, model, serve};
use lily_server::{Server, Settings};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// A limit that is reached soon, and never by a request of these tests.
const LIMIT: Duration = Duration::from_millis(400);
/// Far less than the limits that a test does not set, and far more than a busy machine needs.
const AT_ONCE: Duration = Duration::from_secs(20);

/// Everything that comes until the server closes the connection.
fn until_closed(stream: &mut TcpStream) -> String {
    let start = Instant::now();
    let mut bytes = Vec::new();
    // A connection that is reset is closed too.
    let _ = stream.read_to_end(&mut bytes);
    assert!(start.elapsed() < TIMEOUT, "the connection stays open");
    String::from_utf8(bytes).unwrap()
}

/// Sends a byte now and then until the server has had enough.
fn drip(stream: &mut TcpStream) {
    let start = Instant::now();
    while stream.write_all(b"x").is_ok() {
        assert!(start.elapsed() < TIMEOUT, "the connection stays open");
        thread::sleep(Duration::from_millis(20));
    }
}

fn get_health(stream: &mut TcpStream) -> String {
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut bytes = [0; 4096];
    let read = stream.read(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

#[test]
fn a_head_that_does_not_end_is_cut_off() {
    let server = serve(Settings { head_timeout: LIMIT, ..Settings::default() });
    // Silent from the start, silent in the middle, and a byte now and then.
    let start = Instant::now();
    until_closed(&mut server.connect());
    assert!(start.elapsed() > LIMIT / 2, "{:?}", start.elapsed());
    let mut half = server.connect();
    half.write_all(b"GET /health HTTP/1.1\r\nHost: loc").unwrap();
    until_closed(&mut half);
    let mut slow = server.connect();
    slow.write_all(b"GET /health HTTP/1.1\r\nX-Slow: ").unwrap();
    drip(&mut slow);
    // The second head of a connection has the limit too.
    let mut again = server.connect();
    assert!(get_health(&mut again).starts_with("HTTP/1.1 200"));
    again.write_all(b"GET /hea").unwrap();
    until_closed(&mut again);
}

#[test]
fn a_body_that_does_not_end_gets_a_408() {
    let server = serve(Settings { body_timeout: LIMIT, ..Settings::default() });
    for drips in [false, true] {
        let mut stream = server.connect();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
        write!(stream, "{head}Content-Length: 100000\r\n\r\n{{").unwrap();
        let mut reading = stream.try_clone().unwrap();
        let dripping = drips.then(|| thread::spawn(move || drip(&mut stream)));
        let reply = until_closed(&mut reading);
        assert!(reply.starts_with("HTTP/1.1 408"), "{reply}");
        let body: Value = serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(body["error"]["code"], "body_timeout");
        drop(reading);
        dripping.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let settings = Settings { idle_timeout: LIMIT, head_timeout: LIMIT, ..Settings::default() };
    let server = serve(settings);
    let mut idle = server.connect();
    assert!(get_health(&mut idle).starts_with("HTTP/1.1 200"));
    until_closed(&mut idle);
    // An answer may take longer than every limit of silence.
    let start = Instant::now();
    let mut events = server.stream_chat(&endless(json!({})));
    while start.elapsed() < LIMIT * 3 {
        events.next();
    }
}

#[test]
fn silent_connections_make_room_for_others() {
    let server = serve(Settings { connections: 2, head_timeout: LIMIT, ..Settings::default() });
    let start = Instant::now();
    let silent = [server.connect(), server.connect()];
    assert!(get_health(&mut server.connect()).starts_with("HTTP/1.1 200"));
    assert!(start.elapsed() > LIMIT / 2, "a third connection was served");
    drop(silent);
}

#[test]
fn a_client_that_takes_nothing_is_given_up() {
    let server = serve(Settings { write_timeout: LIMIT, ..Settings::default() });
    let mut stream = server.connect();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    let questions = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1000);
    // No reply is read: the buffers of both sides fill up, and then the server reads no more.
    let start = Instant::now();
    let error = loop {
        assert!(start.elapsed() < TIMEOUT, "the connection stays open");
        if let Err(error) = stream.write_all(questions.as_bytes()) {
            break error;
        }
    };
    assert!(start.elapsed() > LIMIT, "{error}: {:?}", start.elapsed());
    let given_up = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    assert!(given_up.contains(&error.kind()), "{error}");
}

/// Shuts a server down and says how long it took.
fn stop(mut server: Served) -> Duration {
    let start = Instant::now();
    server.shut_down();
    server.join();
    start.elapsed()
}

#[test]
fn shutdown_does_not_wait_for_idle_and_incomplete_requests() {
    let server = serve(Settings { grace: TIMEOUT, ..Settings::default() });
    let silent = server.connect();
    let mut idle = server.connect();
    get_health(&mut idle);
    let mut half_a_head = server.connect();
    half_a_head.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost:").unwrap();
    let mut half_a_body = server.connect();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
    let head = format!("{head}Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n");
    half_a_body.write_all(head.as_bytes()).unwrap();
    // The server says so when it waits for the body.
    let expected = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut interim = [0; 25];
    half_a_body.read_exact(&mut interim).unwrap();
    assert_eq!(&interim, expected);
    half_a_body.write_all(b"{\"messages\": ").unwrap();
    let took = stop(server);
    assert!(took < AT_ONCE, "{took:?}");
    let reply = until_closed(&mut half_a_body);
    assert!(reply.starts_with("HTTP/1.1 503"), "{reply}");
    assert!(reply.contains("shutting_down"), "{reply}");
    drop((silent, idle, half_a_head));
}

#[test]
fn shutdown_ends_with_the_running_request() {
    let server = serve(Settings { grace: TIMEOUT, ..Settings::default() });
    let idle = server.connect();
    let mut events = server.stream_chat(&endless(json!({ "max_tokens": 200 })));
    // A request that waits for its turn would be refused.
    events.until_text();
    let reading = thread::spawn(move || events.rest());
    let took = stop(server);
    assert!(took < TIMEOUT / 2, "{took:?}");
    let last = reading.join().unwrap().pop().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    drop(idle);
}

#[test]
fn before_the_model_is_there_the_server_says_so() {
    let server = Server::new("tiny", Settings::default()).unwrap();
    let handle = server.handle();
    let served = crate::common::run(server);
    let health = served.send("GET", "/health", &[], "");
    assert_eq!(health.status, 503);
    assert_eq!(health.header("retry-after"), Some("1"));
    assert_eq!(health.json()["status"], "loading");
    assert_eq!(health.json()["error"]["code"], "model_loading");
    for (method, path) in [("GET", "/v1/models"), ("POST", "/v1/chat/completions")] {
        let reply = served.send(method, path, &[], "{}");
        assert_eq!(
            (reply.status, reply.json()["error"]["code"].clone()),
            (503, json!("model_loading"))
        );
    }
    assert_eq!(served.send("GET", "/v1/nothing", &[], "").status, 404);
    handle.ready(model(Box::new(device()), CONTEXT)).unwrap();
    assert_eq!(served.send("GET", "/health", &[], "").json()["status"], "ok");
    served.chat(&ask(json!({ "max_tokens": 2 })));
    assert!(handle.ready(model(Box::new(device()), CONTEXT)).is_err(), "a second model");
    served.chat(&ask(json!({ "max_tokens": 2 })));
}

#[test]
fn a_server_that_stops_before_its_model_is_there_takes_none() {
    let server = Server::new("tiny", Settings::default()).unwrap();
    let handle = server.handle();
    let took = stop(crate::common::run(server));
    assert!(took < AT_ONCE, "{took:?}");
    handle.ready(model(Box::new(device()), CONTEXT)).unwrap();
    assert!(!handle.is_busy());
}

#[tokio::test]
async fn a_server_whose_caller_lets_go_stops() {
    let server = Server::new("tiny", Settings::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(server.serve(listener, std::future::pending()));
    tokio::net::TcpStream::connect(address).await.unwrap();
    serving.abort();
    assert!(serving.await.unwrap_err().is_cancelled());
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}
