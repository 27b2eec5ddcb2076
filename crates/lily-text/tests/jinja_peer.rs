//! Renderings equal those of Python's jinja2, on lily's own template and, where the reference files
//! are at hand (`LILY_REFERENCE`), on the published one.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use lily_text::{ChatTemplate, SYNTH_MIN_VOCAB, TextError, synth_tokenizer_files};
use serde_json::Value;

fn peer(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer").join(name)
}

/// Python's renderings, or `None` (said aloud) if there is no Python with jinja2.
fn python(template: &Path) -> Option<Vec<Value>> {
    let has_jinja = Command::new("python3").args(["-c", "import jinja2"]).output();
    if !has_jinja.is_ok_and(|out| out.status.success()) {
        common::skipped("needs python3 with jinja2");
        return None;
    }
    let out = Command::new("python3")
        .arg(peer("render.py"))
        .arg(template)
        .arg(peer("conversations.json"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Some(serde_json::from_slice(&out.stdout).unwrap())
}

fn compare(template: &ChatTemplate, expected: &[Value]) {
    let cases = common::conversations();
    assert_eq!(cases.len(), expected.len());
    assert!(cases.len() >= 40);
    let (mut texts, mut raised, mut failed) = (0, 0, 0);
    let mut differences = Vec::new();
    for (case, expected) in cases.iter().zip(expected) {
        let found = template.render(&case.input());
        let same = match (&found, expected) {
            (Ok(text), expected) if expected["text"].is_string() => {
                texts += 1;
                expected["text"] == text.as_str()
            }
            (Err(TextError::Raised { message }), expected) if expected["raised"].is_string() => {
                raised += 1;
                expected["raised"] == message.as_str()
            }
            (Err(TextError::Render { .. }), expected) if expected["failed"].is_string() => {
                failed += 1;
                true
            }
            _ => false,
        };
        if !same {
            differences.push(format!("{}\n  lily: {found:?}\n  jinja2: {expected}", case.name));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    println!("{texts} texts, {raised} refusals and {failed} failures equal");
    assert!(texts >= 40 && raised >= 5, "the cases no longer cover what they should");
}

#[test]
fn renderings_of_our_own_template_equal_those_of_jinja2() {
    let source = synth_tokenizer_files(SYNTH_MIN_VOCAB).unwrap().chat_template_jinja;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(source.as_bytes()).unwrap();
    let Some(expected) = python(file.path()) else { return };
    compare(&ChatTemplate::from_source(&source).unwrap(), &expected);
}

#[test]
#[cfg_attr(not(lily_reference), ignore = "set LILY_REFERENCE to the folder of the reference files")]
fn renderings_of_the_published_template_equal_those_of_jinja2() {
    let Some(folder) = common::reference() else { return };
    let Some(expected) = python(&folder.join("chat_template.jinja")) else { return };
    compare(&ChatTemplate::open(&folder).unwrap(), &expected);
}

#[test]
fn string_functions_equal_those_of_jinja2() {
    let source = std::fs::read_to_string(peer("functions.jinja")).unwrap();
    let Some(expected) = python(&peer("functions.jinja")) else { return };
    compare_all(&ChatTemplate::from_source(&source).unwrap(), &expected);
}

/// As `compare`, for a template that refuses nothing.
fn compare_all(template: &ChatTemplate, expected: &[Value]) {
    for (case, expected) in common::conversations().iter().zip(expected) {
        let found = template.render(&case.input()).unwrap();
        assert_eq!(Value::from(found), expected["text"], "{}: {expected}", case.name);
    }
}
