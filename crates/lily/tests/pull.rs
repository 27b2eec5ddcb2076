//! `lily pull` and models by name, with the real program and a hub on this machine.

#![allow(clippy::unwrap_used)]

#[path = "../../lily-hub/tests/hub/mod.rs"]
mod hub;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hub::{Access, Fault, Hub, Repository, sha256};
use serde_json::Value;

const WEIGHTS: &str = "model.safetensors";

/// A home for the cache, and a hub.
struct Place {
    hub: Hub,
    home: tempfile::TempDir,
}

impl Place {
    /// A hub with a random model as `org/tiny`.
    fn new() -> Self {
        let place = Self { hub: Hub::start(), home: tempfile::tempdir().unwrap() };
        place.hub.add("org/tiny", tiny());
        place
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lily"));
        for name in [
            "HF_TOKEN",
            "HF_TOKEN_PATH",
            "HF_HUB_CACHE",
            "HF_HUB_OFFLINE",
            "XDG_CACHE_HOME",
            "http_proxy",
            "HTTP_PROXY",
            "https_proxy",
            "HTTPS_PROXY",
            "all_proxy",
            "ALL_PROXY",
        ] {
            command.env_remove(name);
        }
        command
            .env("HF_HOME", self.home.path())
            .env("HF_ENDPOINT", self.hub.url())
            .current_dir(self.home.path())
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn lily(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Standard output of a command that succeeds.
    fn ok(&self, args: &[&str]) -> String {
        let output = self.lily(args);
        assert!(output.status.success(), "{args:?}: {}", err(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Standard error of a command that fails.
    fn refused(&self, args: &[&str]) -> String {
        let output = self.lily(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", err(&output));
        err(&output)
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    fn blobs(&self) -> PathBuf {
        self.home.path().join("hub/models--org--tiny/blobs")
    }
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A random model with a tokenizer, and files that are not downloaded.
fn tiny() -> Repository {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny");
    let made = Command::new(env!("CARGO_BIN_EXE_lily"))
        .args(["synth", "--preset", "tiny", "--seed", "3", "--out", path.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", err(&made));
    fs::write(path.join("README.md"), "read me").unwrap();
    fs::write(path.join("model.gguf"), "other").unwrap();
    Repository::of_folder(&path)
}

fn weights(repository: &Repository) -> &[u8] {
    let mut weights = repository.files.iter().filter(|(name, _)| name.ends_with(".safetensors"));
    &weights.next().unwrap().1.content
}

#[test]
fn a_downloaded_model_answers_by_its_name_without_a_network() {
    let place = Place::new();
    let pulled = place.json(&["pull", "org/tiny", "--json"]);
    let folder = Path::new(pulled["folder"].as_str().unwrap());
    assert!(folder.starts_with(place.home.path().join("hub/models--org--tiny/snapshots")));
    let files = pulled["files"].as_array().unwrap();
    let names: Vec<_> = files.iter().map(|file| file["name"].as_str().unwrap()).collect();
    for name in ["config.json", "tokenizer.json", "chat_template.jinja", WEIGHTS] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(!names.contains(&"README.md") && !names.contains(&"model.gguf"), "{names:?}");
    let bytes: u64 = files.iter().map(|file| file["bytes"].as_u64().unwrap()).sum();
    assert_eq!(pulled["bytes"], bytes);
    assert_eq!((&pulled["received"], &pulled["resumed"]), (&bytes.into(), &0.into()));
    let asked = place.hub.requests().len();
    assert_eq!(asked, names.len() + 1, "the list, and each file once");

    // From here on no request may be made.
    let by_folder = ["run", "-m", folder.to_str().unwrap(), "Hello", "--max-tokens", "8"];
    let by_name = ["run", "-m", "org/tiny", "Hello", "--max-tokens", "8"];
    assert_eq!(place.ok(&by_name), place.ok(&by_folder));
    assert!(!place.ok(&by_name).trim().is_empty());
    let commit = pulled["commit"].as_str().unwrap();
    let pinned = format!("org/tiny@{commit}");
    assert_eq!(place.ok(&["run", "-m", &pinned, "Hello", "--max-tokens", "8"]), place.ok(&by_name));
    assert_eq!(place.json(&["inspect", "org/tiny", "--json"])["supported"], true);
    assert!(place.json(&["plan", "-m", "org/tiny", "--json"])["launches"].as_u64().unwrap() > 10);
    let chat = place.lily(&["chat", "-m", "org/tiny"]);
    assert!(chat.status.success(), "{}", err(&chat));
    assert!(place.hub.requests().is_empty());
}

#[test]
fn the_server_names_a_downloaded_model_as_the_hub_does() {
    let place = Place::new();
    place.ok(&["pull", "org/tiny"]);
    let mut server = place.command(&["serve", "-m", "org/tiny", "--port", "0"]).spawn().unwrap();
    let stderr = server.stderr.take().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(stderr)).map_while(Result::ok);
    let first = lines.take(1).next().unwrap_or_default();
    let _ = server.kill();
    let _ = server.wait();
    assert!(first.starts_with("lily: org/tiny on "), "{first}");
}

#[test]
fn a_name_that_was_not_downloaded_says_how_and_a_folder_of_that_name_wins() {
    let place = Place::new();
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/heads");
    for args in [
        &["run", "-m", "org/tiny", "Hello"][..],
        &["chat", "-m", "org/tiny"],
        &["serve", "-m", "org/tiny", "--port", "0"],
        &["plan", "-m", "org/tiny"],
        &["inspect", "org/tiny"],
        &["eval", "-m", "org/tiny", "--reference", golden],
    ] {
        let message = place.refused(args);
        assert!(message.contains("`lily pull org/tiny` downloads it"), "{args:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    assert!(place.hub.requests().is_empty(), "only `lily pull` uses the network");
    place.ok(&["pull", "org/tiny"]);
    fs::create_dir_all(place.home.path().join("org/tiny")).unwrap();
    let message = place.refused(&["run", "-m", "org/tiny", "Hello"]);
    assert!(!message.contains("lily pull"), "the empty folder is meant: {message}");
}

#[test]
fn a_broken_off_download_is_resumed_by_the_same_command() {
    let place = Place::new();
    let repository = tiny();
    let size = weights(&repository).len();
    // As often as it is tried in one run: the waits between the tries are those of a person.
    place.hub.fail(WEIGHTS, &[Fault::Stall(size / 2)]);
    let mut child = place.command(&["pull", "org/tiny"]).spawn().unwrap();
    let partial = place.blobs().join(format!("{}.incomplete", sha256(weights(&repository))));
    let start = Instant::now();
    while fs::metadata(&partial).map_or(0, |found| found.len()) < (size / 2) as u64 {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing arrived");
        thread::sleep(Duration::from_millis(20));
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let status = child.wait().unwrap();
    let mut message = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut message).unwrap();
    assert_eq!(status.code(), Some(130), "{message}");
    assert!(message.contains("run `lily pull org/tiny` again, it goes on from there"), "{message}");
    assert!(!message.contains('\u{1b}'), "{message:?}");
    let incomplete = format!(
        "lily: the download of org/tiny is not complete ({WEIGHTS} is missing); `lily pull org/tiny` \
         continues it\n"
    );
    for args in [&["run", "-m", "org/tiny", "Hello"][..], &["inspect", "org/tiny"]] {
        assert_eq!(place.refused(args), incomplete);
    }

    place.hub.requests();
    let pulled = place.json(&["pull", "org/tiny", "--json"]);
    assert_eq!(pulled["resumed"], size / 2);
    assert_eq!(pulled["received"], size - size / 2);
    let range = format!("bytes={}-", size / 2);
    assert_eq!(place.hub.asked(), [(WEIGHTS.to_owned(), Some(range))]);
    assert!(!place.ok(&["run", "-m", "org/tiny", "Hello", "--max-tokens", "4"]).is_empty());
}

#[test]
fn a_model_that_lily_does_not_run_is_refused_before_its_weights() {
    let place = Place::new();
    let files = [
        (
            "config.json",
            br#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}"#.to_vec(),
        ),
        (WEIGHTS, vec![1; 1000]),
    ];
    place.hub.add("org/llama", Repository::new(files));
    let message = place.refused(&["pull", "org/llama"]);
    assert!(message.contains("org/llama was not downloaded: "), "{message}");
    assert!(message.contains("llama"), "{message}");
    assert!(place.hub.asked().iter().all(|(name, _)| name != WEIGHTS));
}

#[test]
fn the_token_of_the_environment_opens_a_gated_model_and_is_not_printed() {
    let place = Place::new();
    let repository = tiny().with_access(Access::Gated("hf_right"));
    place.hub.add("org/gated", repository);
    let message = place.refused(&["pull", "org/gated"]);
    assert!(message.contains("accept its licence at http://127.0.0.1"), "{message}");
    let output =
        place.command(&["pull", "org/gated"]).env("HF_TOKEN", "hf_wrong").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(!err(&output).contains("hf_wrong"), "{}", err(&output));
    // What `hf auth login` leaves.
    fs::write(place.home.path().join("token"), "hf_right\n").unwrap();
    let folder = place.ok(&["pull", "org/gated"]);
    assert!(Path::new(folder.trim()).join(WEIGHTS).is_file(), "{folder}");
}

#[test]
fn variables_that_cannot_be_used_are_named() {
    let place = Place::new();
    for (name, value, wanted) in [
        (
            "HTTPS_PROXY",
            "nonsense://",
            "HTTPS_PROXY is `nonsense://`, expected the URL of an HTTP proxy",
        ),
        ("HF_HOME", "/dev/null", "HF_HOME is `/dev/null`, which is no folder; set it to a folder"),
    ] {
        let output = place.command(&["pull", "org/tiny"]).env(name, value).output().unwrap();
        let message = err(&output);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.starts_with(&format!("lily: {wanted}")), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    assert!(place.hub.requests().is_empty());
}

#[test]
fn usage_errors_and_missing_models_have_their_exit_codes() {
    let place = Place::new();
    for args in [&["pull"][..], &["pull", "tiny"], &["pull", "../tiny"], &["pull", "a/b@../c"]] {
        assert_eq!(place.lily(args).status.code(), Some(2), "{args:?}");
    }
    let message = place.refused(&["pull", "org/none"]);
    assert!(message.contains("found no repository org/none"), "{message}");
    let message = place.refused(&["pull", "org/tiny@v7"]);
    assert!(message.contains("has no revision `v7`"), "{message}");
}
