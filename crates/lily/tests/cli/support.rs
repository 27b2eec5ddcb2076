//! Runs the real program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// What a run of the program left behind.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// The program, ready for arguments.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lily"));
    command.env("RUST_BACKTRACE", "1").stdin(Stdio::null());
    command
}

/// Runs the program to its end.
pub fn lily(args: &[&str]) -> Outcome {
    let output = program().args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// The folder of a golden model.
pub fn golden(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    root.join(name).to_str().unwrap().into()
}

/// `prompts.json` of a golden model.
pub fn prompts(name: &str) -> Value {
    let path = PathBuf::from(golden(name)).join("prompts.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Ids as the command line takes them.
pub fn ids(list: &Value) -> String {
    let ids: Vec<String> = list.as_array().unwrap().iter().map(Value::to_string).collect();
    ids.join(",")
}

impl Outcome {
    /// The one JSON object on standard output; standard error may hold text for people.
    pub fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.object()
    }

    /// The same without looking at the exit code.
    pub fn object(&self) -> Value {
        assert_eq!(self.stdout.matches('\n').count(), 1, "one line: {self:?}");
        let value: Value = serde_json::from_str(&self.stdout).unwrap();
        assert!(value.is_object(), "{value}");
        value
    }

    /// A failure: exit code 1, nothing on standard output, one sentence on standard error.
    pub fn assert_fails(&self, part: &str) {
        assert_eq!((self.code, self.stdout.as_str()), (Some(1), ""), "{self:?}");
        let lines = self.messages();
        assert_eq!(lines.len(), 1, "{self:?}");
        assert!(lines[0].starts_with("lily: ") && lines[0].contains(part), "{self:?}, need {part}");
        self.assert_calm();
    }

    /// Lines of standard error that are no warnings; golden folders hold files that earn one.
    pub fn messages(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| !line.starts_with("lily: warning: ")).collect()
    }

    /// A usage error: exit code 2, nothing on standard output.
    pub fn assert_usage(&self, part: &str) {
        assert_eq!((self.code, self.stdout.as_str()), (Some(2), ""), "{self:?}");
        assert!(self.stderr.contains(part), "{self:?}, need {part}");
        self.assert_calm();
    }

    /// No panic, no backtrace.
    pub fn assert_calm(&self) {
        for word in ["panicked", "RUST_BACKTRACE", "stack backtrace", "thread 'main'"] {
            assert!(!self.stderr.contains(word), "{self:?}");
        }
    }
}

/// Names of an object's fields, sorted.
pub fn fields(value: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}
