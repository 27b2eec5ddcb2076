//! `lily serve` as a person starts and stops it.

#![allow(clippy::unwrap_used)]
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A server that has nothing to finish stops in less.
const AT_ONCE: Duration = Duration::from_secs(4);

struct Served {
    child: Child,
    notes: BufReader<ChildStderr>,
    /// What it said until it was ready.
    first_notes: String,
    address: String,
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lily"));
    command.arg("serve").args(args).stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

fn serve(args: &[&str]) -> Served {
    let mut child = command(&[&["--port", "0"], args].concat()).spawn().unwrap();
    let notes = BufReader::new(child.stderr.take().unwrap());
    let (address, first_notes) = (String::new(), String::new());
    let mut served = Served { child, notes, first_notes, address };
    let mut note = String::new();
    while served.address.is_empty() {
        let before = note.len();
        assert!(served.notes.read_line(&mut note).unwrap() > 0, "the server ended: {note}");
        let address = note[before..].trim_end().strip_prefix("listening on http://");
        served.address = address.unwrap_or_default().to_string();
    }
    served.first_notes = note;
    served
}

impl Served {
    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Waits for the end; gives what it said since it was ready, and its exit status.
    fn end(&mut self) -> (String, Option<i32>) {
        let mut notes = String::new();
        self.notes.read_to_string(&mut notes).unwrap();
        (notes, self.child.wait().unwrap().code())
    }

    /// Starts an answer that does not end soon.
    fn occupy(&self) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let body = r#"{"messages":[{"role":"user","content":"Hi"}],"stream":true,
            "logit_bias":{"499":-100,"500":-100,"501":-100,"502":-100,"503":-100,"509":-100,
            "510":-100,"511":-100}}"#;
        let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
        write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        // The headers, the role, and some text.
        let mut seen = String::new();
        while !seen.contains("reasoning_content") {
            let mut bytes = [0; 4096];
            let read = stream.read(&mut bytes).unwrap();
            assert!(read > 0, "{seen}");
            seen.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
        stream
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Both fail if it has ended and was waited for, as it should.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn refused(args: &[&str]) -> String {
    let Output { status, stderr, .. } = command(args).output().unwrap();
    assert_eq!(status.code(), Some(1), "{args:?}");
    String::from_utf8(stderr).unwrap()
}

#[test]
fn a_signal_ends_an_idle_server_at_once() {
    let mut server = serve(&[]);
    let _silent = TcpStream::connect(&server.address).unwrap();
    let mut half = TcpStream::connect(&server.address).unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
    write!(half, "{head}Content-Length: 100\r\n\r\n{{").unwrap();
    thread::sleep(Duration::from_millis(200));
    let start = Instant::now();
    server.signal("-TERM");
    let (notes, status) = server.end();
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    assert_eq!((notes.trim(), status), ("lily: stopping", Some(0)));
}

#[test]
fn a_second_signal_ends_a_busy_server_at_once() {
    // A random model, which never ends an answer where its stop tokens are impossible.
    let parent = tempfile::tempdir().unwrap();
    let model = parent.path().join("tiny");
    let synth = ["synth", "--preset", "tiny", "--out", model.to_str().unwrap()];
    let made = Command::new(env!("CARGO_BIN_EXE_lily")).args(synth).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let mut server = serve(&["-m", model.to_str().unwrap(), "--ctx", "65536"]);
    let _running = server.occupy();
    server.signal("-INT");
    let mut note = String::new();
    server.notes.read_line(&mut note).unwrap();
    assert!(note.contains("finishing the running requests, for at most 5 s"), "{note}");
    let start = Instant::now();
    server.signal("-INT");
    let (_, status) = server.end();
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    assert_eq!(status, Some(130));
}

#[test]
fn a_taken_port_is_said_before_anything_is_loaded() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let said = refused(&["--port", &port]);
    assert!(said.contains(&format!("cannot listen on 127.0.0.1 port {port}")), "{said}");
    assert!(!said.contains("loaded in"), "{said}");
}

#[test]
fn options_without_a_meaning_are_refused() {
    for (args, words) in [
        (["--allow-origin", "nonsense"], "\"nonsense\""),
        (["--allow-origin", "http://a/"], "without a path"),
        (["--allow-host", "http://box"], "host name"),
        (["--model-name", ""], "name for the model"),
        (["--api-key", ""], "API key"),
        (["--api-key", "geheim ä"], "API key"),
        (["--host", "http://box"], "host name"),
        (["--host", "127.0.0.256"], "host name"),
    ] {
        // Before the model is looked for: there is none of this name.
        let all = [&["--port", "0", "-m", "no/model"], &args[..]].concat();
        let Output { status, stderr, .. } = command(&all).output().unwrap();
        let said = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(2), "{args:?}: {said}");
        let start = format!("error: {}: expected ", args[0]);
        assert!(said.starts_with(&start) && said.contains(words), "{args:?}: {said}");
        assert!(!said.contains("geheim"), "a key is not repeated: {said}");
    }
    for (file, words) in [("/dev/null", "API key"), ("no/such/file", "cannot read the key")] {
        let said = refused(&["--port", "0", "--api-key-file", file]);
        assert!(said.contains(words), "{file}: {said}");
    }
}

#[test]
fn other_machines_are_let_in_with_a_key_or_on_purpose() {
    let said = refused(&["--port", "0", "--host", "0.0.0.0"]);
    assert!(said.contains("without a key") && said.contains("--without-key"), "{said}");
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "from-a-file").unwrap();
    let path = file.path().to_str().unwrap();
    for (args, key) in [
        (vec!["--host", "0.0.0.0", "--without-key"], None),
        (vec!["--host", "0.0.0.0", "--api-key-file", path], Some("from-a-file")),
        (vec!["--api-key", "from-a-flag"], Some("from-a-flag")),
    ] {
        let mut server = serve(&args);
        let port = server.address.rsplit_once(':').unwrap().1.to_owned();
        let status = |authorization: &str| {
            let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
            let head = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
            write!(stream, "{head}{authorization}\r\n").unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).unwrap();
            reply.split(' ').nth(1).unwrap().to_owned()
        };
        assert_eq!(status(""), if key.is_none() { "200" } else { "401" }, "{args:?}");
        if let Some(key) = key {
            assert_eq!(status(&format!("Authorization: Bearer {key}\r\n")), "200", "{args:?}");
        }
        server.signal("-TERM");
        let (notes, _) = server.end();
        assert!(key.is_none_or(|key| !notes.contains(key)), "{notes}");
    }
}

#[test]
fn a_cache_that_keeps_nothing_is_warned_of_unless_it_was_meant() {
    let small = serve(&["--cache-memory", "1000"]);
    let warning = "warning: --cache-memory is 1000 bytes, but the beginning of one prompt takes ";
    assert!(small.first_notes.contains(warning), "{}", small.first_notes);
    for enough in ["0", "64M"] {
        let server = serve(&["--cache-memory", enough]);
        assert!(!server.first_notes.contains("warning"), "{enough}: {}", server.first_notes);
    }
}

#[test]
fn the_key_may_stand_in_the_environment() {
    let mut command = command(&["--host", "0.0.0.0", "--port", "0"]);
    // Refused for its space: so it was read, and it is not shown.
    let output = command.env("LILY_API_KEY", "se cret").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("API key") && !said.contains("se cret"), "{said}");
    let output = self::command(&["--port", "0"]).env("LILY_API_KEY", "").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("LILY_API_KEY is empty"), "{said}");
}

#[test]
fn a_scripted_model_says_its_file_and_loads_no_weights() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, r#"{{"pieces": ["hm\n</think>\n\n", "Hel", "lo"]}}"#).unwrap();
    let mut server = serve(&["--scripted", file.path().to_str().unwrap()]);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let body = r#"{"messages":[{"role":"user","content":"Hi"}]}"#;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.contains(r#""content":"Hello""#), "{reply}");
    assert!(reply.contains(r#""reasoning_content":"hm""#), "{reply}");
    server.signal("-TERM");
    assert_eq!(server.end().1, Some(0));
    let notes = &server.first_notes;
    // The built-in model gives its tokenizer only.
    assert!(notes.contains("is scripted") && !notes.contains("random"), "{notes}");

    writeln!(file, "{{}}").unwrap();
    let said = refused(&["--port", "0", "--scripted", file.path().to_str().unwrap()]);
    assert!(said.contains("line 2 of the script"), "{said}");
}
