//! A served tiny model and a plain HTTP client.

// Each test file uses a part of this, and a failure here fails the test.
#![allow(dead_code, clippy::unwrap_used)]

pub mod gate;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lily_chat::{Script, random_model};
use lily_cpu::{CpuDevice, CpuOptions, Numerics};
use lily_model::engine::{Engine, EngineOptions};
use lily_model::plan::model_shape;
use lily_model::{Checkpoint, GenerationDefaults, stop_tokens};
use lily_plan::Device;
use lily_server::{Generator, Model, Server, Settings};
use lily_text::PromptEncoder;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Large enough for answers that outlast every test.
pub const CONTEXT: usize = 65536;
/// Ends a turn, in the tiny model's vocabulary.
pub const TURN_END: &str = "511";
/// Others that stand between turns and end one: `<|endoftext|>`, the marks of images and videos, and
/// `<|im_start|>`.
pub const CONTROL: [&str; 6] = ["499", "500", "501", "502", "503", "510"];
/// Ends a thought.
pub const THOUGHT_END: &str = "509";
/// Nothing in these tests takes so long unless it hangs.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A server in its own thread, stopped when dropped.
pub struct Served {
    pub address: SocketAddr,
    shutdown: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// A stream of events, read as it comes.
pub struct Events {
    pub head: String,
    reader: BufReader<TcpStream>,
    /// Lines of the chunks read so far.
    text: String,
}

fn folder() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| random_model().unwrap()).path()
}

/// The device of all tests.
pub fn device() -> CpuDevice {
    CpuDevice::new(CpuOptions { numerics: Numerics::Exact, threads: 1, ..CpuOptions::default() })
}

/// The tiny model on a device, one request at a time.
pub fn model(device: Box<dyn Device>, context: usize) -> Model {
    model_with(device, EngineOptions { context, chunk: 64, ..EngineOptions::default() })
}

pub fn model_with(device: Box<dyn Device>, options: EngineOptions) -> Model {
    let checkpoint = Checkpoint::open(folder()).unwrap();
    let shape = model_shape(checkpoint.config());
    let weights = checkpoint.weights().unwrap();
    let engine = Engine::new(device, shape, weights, options).unwrap();
    Model {
        generator: Generator::Engine(Box::new(engine)),
        encoder: PromptEncoder::open(folder()).unwrap(),
        defaults: GenerationDefaults::read(folder()).unwrap(),
        stop_ids: stop_tokens(folder(), checkpoint.config()).unwrap(),
        note: Some("It is tiny.".into()),
    }
}

/// Serves the tiny model.
pub fn serve(settings: Settings) -> Served {
    serve_context(CONTEXT, settings)
}

pub fn serve_context(context: usize, settings: Settings) -> Served {
    serve_device(Box::new(device()), context, settings)
}

pub fn serve_device(device: Box<dyn Device>, context: usize, settings: Settings) -> Served {
    let server = Server::new("tiny", settings).unwrap();
    server.handle().ready(model(device, context)).unwrap();
    run(server)
}

/// Serves the tiny model, `sessions` requests at once.
pub fn serve_sessions(
    device: Box<dyn Device>,
    context: usize,
    sessions: usize,
    settings: Settings,
) -> Served {
    let base = EngineOptions { context, chunk: 64, ..EngineOptions::default() };
    let options = EngineOptions { batch: sessions, ..base };
    let server = Server::new("tiny", settings).unwrap();
    server.handle().ready(model_with(device, options)).unwrap();
    run(server)
}

/// Serves texts as a model would say them, one list of pieces for each request.
pub fn serve_script(replies: &[&[&str]], settings: Settings) -> Served {
    serve_script_context(replies, CONTEXT, settings)
}

pub fn serve_script_context(replies: &[&[&str]], context: usize, settings: Settings) -> Served {
    let line = |pieces: &&[&str]| json!({ "pieces": pieces }).to_string();
    let lines: Vec<String> = replies.iter().map(line).collect();
    let script = Arc::new(Script::parse(&lines.join("\n")).unwrap());
    let checkpoint = Checkpoint::open(folder()).unwrap();
    let server = Server::new("tiny", settings).unwrap();
    let model = Model {
        generator: Generator::Script { script, context, vocab: 512 },
        encoder: PromptEncoder::open(folder()).unwrap(),
        defaults: GenerationDefaults::read(folder()).unwrap(),
        stop_ids: stop_tokens(folder(), checkpoint.config()).unwrap(),
        note: Some("It is tiny.".into()),
    };
    server.handle().ready(model).unwrap();
    run(server)
}

/// Serves in a thread.
pub fn run(server: Server) -> Served {
    let (shutdown, stopped) = oneshot::channel();
    let (started, address) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            started.send(listener.local_addr().unwrap()).unwrap();
            let shutdown = async {
                // Also when the test has let go of the server.
                let _ = stopped.await;
            };
            server.serve(listener, shutdown).await;
        });
        runtime.shutdown_background();
    });
    let address = address.recv().unwrap();
    Served { address, shutdown: Some(shutdown), thread: Some(thread) }
}

impl Served {
    /// Sends a request and waits for the whole reply.
    pub fn send(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Reply {
        let mut stream = self.connect();
        let length = format!("Content-Length: {}", body.len());
        let mut lines = vec![length.as_str()];
        lines.extend(headers);
        write_request(&mut stream, method, path, &lines, body.as_bytes());
        let mut reader = BufReader::new(stream);
        let head = read_head(&mut reader);
        let mut body = String::new();
        match header(&head, "content-length") {
            Some(length) => {
                let mut bytes = vec![0; length.parse().unwrap()];
                reader.read_exact(&mut bytes).unwrap();
                body = String::from_utf8(bytes).unwrap();
            }
            None if header(&head, "transfer-encoding").is_some() => {
                while let Some(chunk) = read_chunk(&mut reader) {
                    body.push_str(&chunk);
                }
            }
            None => {}
        }
        Reply { status: status(&head), head, body }
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, &[], &body.to_string())
    }

    /// A chat that is expected to succeed.
    pub fn chat(&self, body: &Value) -> Value {
        let reply = self.post("/v1/chat/completions", body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()
    }

    /// Sends a request and gives what comes back as soon as its headers are there.
    pub fn stream(&self, path: &str, body: &Value) -> Events {
        let mut stream = self.connect();
        let body = body.to_string();
        let length = format!("Content-Length: {}", body.len());
        write_request(&mut stream, "POST", path, &[&length], body.as_bytes());
        let mut reader = BufReader::new(stream);
        let head = read_head(&mut reader);
        assert_eq!(status(&head), 200, "{head}");
        Events { head, reader, text: String::new() }
    }

    pub fn stream_chat(&self, body: &Value) -> Events {
        let mut body = body.clone();
        body["stream"] = json!(true);
        self.stream("/v1/chat/completions", &body)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// Waits until the server says so.
    pub fn wait_for(&self, running: u64, waiting: u64) {
        let start = Instant::now();
        loop {
            let health = self.send("GET", "/health", &[], "").json();
            if health["running"] == running && health["waiting"] == waiting {
                return;
            }
            assert!(start.elapsed() < TIMEOUT, "still {health}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until so many requests wait or run.
    pub fn wait_for_all(&self, requests: u64) {
        let start = Instant::now();
        loop {
            let health = self.send("GET", "/health", &[], "").json();
            let count = |field: &str| health[field].as_u64().unwrap_or(0);
            if count("running") + count("waiting") == requests {
                return;
            }
            assert!(start.elapsed() < TIMEOUT, "still {health}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks the server to stop, as a signal does.
    pub fn shut_down(&mut self) {
        self.shutdown.take().unwrap().send(()).unwrap();
    }

    /// Waits until the server has stopped.
    pub fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.shutdown.take());
    }
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }
}

impl Events {
    /// The next line that is not empty; `None` at the end.
    pub fn line(&mut self) -> Option<String> {
        loop {
            if let Some((line, rest)) = self.text.split_once('\n') {
                let (line, rest) = (line.to_string(), rest.to_string());
                self.text = rest;
                if !line.is_empty() {
                    return Some(line);
                }
                continue;
            }
            self.text.push_str(&read_chunk(&mut self.reader)?);
        }
    }

    /// The next chunk of the body, whatever is in it; `None` behind the last.
    pub fn chunk(&mut self) -> Option<String> {
        read_chunk(&mut self.reader)
    }

    /// The data of the next event; comments are skipped.
    pub fn data(&mut self) -> Option<String> {
        loop {
            let line = self.line()?;
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(data.to_string());
            }
            assert!(line.starts_with(':'), "neither data nor comment: {line}");
        }
    }

    /// The next event as JSON.
    pub fn next(&mut self) -> Value {
        serde_json::from_str(&self.data().unwrap()).unwrap()
    }

    /// Takes events until text flows: the first event of a chat comes while it waits for its turn.
    pub fn until_text(&mut self) {
        while self.next()["choices"][0]["delta"]["reasoning_content"].is_null() {}
    }

    /// Everything up to `[DONE]`, which must be last.
    pub fn rest(&mut self) -> Vec<Value> {
        let mut all = Vec::new();
        loop {
            let data = self.data().expect("the stream ends without [DONE]");
            if data == "[DONE]" {
                assert_eq!(self.data(), None);
                return all;
            }
            all.push(serde_json::from_str(&data).unwrap());
        }
    }
}

/// One question; whatever is in `more` comes on top.
pub fn ask(more: Value) -> Value {
    let mut body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "Hi" }] });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// A bias with which the model ends no text by itself: neither by the end of a turn nor by another
/// token that stands between turns. Whatever is in `more` comes on top.
pub fn going_on(more: Value) -> Value {
    let mut bias = json!({ TURN_END: -100 });
    for id in CONTROL {
        bias[id] = json!(-100);
    }
    for (key, value) in more.as_object().unwrap() {
        bias[key] = value.clone();
    }
    bias
}

/// Never ends by itself.
pub fn endless(more: Value) -> Value {
    let bias = going_on(json!({ THOUGHT_END: -100 }));
    let mut body = ask(json!({ "seed": 1, "logit_bias": bias }));
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn write_request(stream: &mut TcpStream, method: &str, path: &str, headers: &[&str], body: &[u8]) {
    let host = match headers.iter().any(|h| h.to_ascii_lowercase().starts_with("host:")) {
        true => String::new(),
        false => "Host: localhost\r\n".into(),
    };
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let head = format!("{method} {path} HTTP/1.1\r\n{host}{headers}\r\n");
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(body);
    // A server that refuses a body early may have closed the connection.
    let _ = stream.write_all(&bytes);
}

fn read_head(reader: &mut BufReader<TcpStream>) -> String {
    let mut head = String::new();
    loop {
        let before = head.len();
        let read = reader.read_line(&mut head).unwrap();
        if read == 0 || head[before..] == *"\r\n" {
            return head;
        }
    }
}

/// A chunk of a body; `None` behind the last.
fn read_chunk(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut size = String::new();
    reader.read_line(&mut size).unwrap();
    let size = usize::from_str_radix(size.trim(), 16).ok()?;
    let mut bytes = vec![0; size + 2];
    reader.read_exact(&mut bytes).unwrap();
    bytes.truncate(size);
    (size > 0).then(|| String::from_utf8(bytes).unwrap())
}

fn status(head: &str) -> u16 {
    head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}
