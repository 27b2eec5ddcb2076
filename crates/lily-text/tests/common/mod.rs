//! Conversations and reference files of the tests.

#![allow(dead_code, reason = "each test file uses a part")]

use std::io::Write as _;
use std::path::{Path, PathBuf};

use lily_text::{ChatInput, TemplateOptions};
use serde_json::{Map, Value};

/// A conversation of `peer/conversations.json`.
pub struct Case {
    pub name: String,
    pub messages: Vec<Value>,
    pub tools: Option<Vec<Value>>,
    pub options: TemplateOptions,
}

pub fn conversations() -> Vec<Case> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer/conversations.json");
    let text = std::fs::read_to_string(file).unwrap();
    let cases: Vec<Map<String, Value>> = serde_json::from_str(&text).unwrap();
    let list = |value: Option<Value>| match value {
        Some(Value::Array(items)) => Some(items),
        _ => None,
    };
    cases
        .into_iter()
        .map(|mut case| {
            let mut extra = match case.remove("options") {
                Some(Value::Object(fields)) => fields,
                _ => Map::new(),
            };
            let mut flag = |name: &str| extra.remove(name).map(|value| value.as_bool().unwrap());
            let options = TemplateOptions {
                add_generation_prompt: flag("add_generation_prompt").unwrap_or(true),
                enable_thinking: flag("enable_thinking"),
                preserve_thinking: flag("preserve_thinking"),
                extra,
            };
            Case {
                name: case["name"].as_str().unwrap().to_owned(),
                messages: list(case.remove("messages")).unwrap(),
                tools: list(case.remove("tools")),
                options,
            }
        })
        .collect()
}

impl Case {
    pub fn input(&self) -> ChatInput<'_> {
        ChatInput { messages: &self.messages, tools: self.tools.as_deref(), options: &self.options }
    }
}

/// Says that a test cannot do its work here. Straight to standard error: the test runner keeps what
/// is printed by tests that pass.
pub fn skipped(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "{test}: skipped: {why}");
}

/// The folder that `LILY_REFERENCE` names, with the published files; `None`, said aloud, without.
pub fn reference_root() -> Option<PathBuf> {
    match std::env::var_os("LILY_REFERENCE") {
        Some(folder) => Some(PathBuf::from(folder)),
        None => {
            skipped("set LILY_REFERENCE to the folder of the reference files");
            None
        }
    }
}

/// The published tokenizer and template.
pub fn reference() -> Option<PathBuf> {
    reference_root().map(|folder| folder.join("qwen3.6-35b-a3b"))
}
