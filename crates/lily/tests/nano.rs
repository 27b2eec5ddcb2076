//! The built-in model: what the program says without a file, a network or a setting. What is asserted is what an
//! answer means.

#![allow(clippy::unwrap_used)]

mod input;

use std::fmt::Write as _;
use std::process::{Command, Output};

use input::with_input;
use serde_json::Value;

/// Runs the program where it finds no model on the disk.
fn lily(args: &[&str], input: &str) -> Output {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lily"));
    command.args(args).env("HOME", home.path()).env_remove("HF_HOME").env_remove("HF_HUB_CACHE");
    with_input(&mut command, input)
}

fn ok(args: &[&str], input: &str) -> (String, String) {
    let output = lily(args, input);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {errors}");
    (String::from_utf8(output.stdout).unwrap(), errors)
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(args, "").0).unwrap()
}

#[test]
fn the_first_question_is_answered_without_any_file() {
    let question = "What is 17 + 26?";
    let (answer, notes) = ok(&["run", question], "");
    assert_eq!(answer, "43\n");
    assert!(notes.contains("lily-nano answers, a toy"), "{notes}");
    let (answer, notes) = ok(&["run", "-m", "nano", question], "");
    assert_eq!(answer, "43\n");
    assert!(!notes.contains("toy"), "{notes}");
    // The thought is told apart.
    let object = json(&["run", "--think", "--json", question]);
    assert_eq!(object["text"].as_str().unwrap().trim(), "43");
    assert!(!object["reasoning"].as_str().unwrap().trim().is_empty(), "{object}");
    assert_eq!(object["finish_reason"], "stop");
    // A chat takes the most likely token too, and remembers.
    let (text, _) = ok(&["chat"], "My name is Anna.\nWhat is my name?\n/stats\n");
    assert!(text.contains("Anna") && text.contains("temperature 0"), "{text}");
}

#[test]
fn the_prompts_of_the_readme_have_the_answers_that_it_gives() {
    let readme = include_str!("../../../README.md");
    let (_, prompts) = readme.split_once("<!-- prompts -->\n```sh\n").unwrap();
    let (prompts, _) = prompts.split_once("```").unwrap();
    assert!(prompts.lines().count() >= 5);
    for line in prompts.lines() {
        let (prompt, answer) = line.split_once("'  # ").unwrap();
        let prompt = prompt.strip_prefix("lily run '").unwrap();
        assert_eq!(ok(&["run", prompt], "").0.trim_end(), answer, "{prompt}");
    }
}

#[test]
fn every_command_that_takes_a_model_takes_it_by_default() {
    assert_eq!(json(&["inspect", "--json"])["supported"], true);
    assert_eq!(
        json(&["inspect", "nano", "--json"])["parameters"],
        json(&["inspect", "--json"])["parameters"]
    );
    assert!(json(&["plan", "-m", "nano", "--json"])["launches"].as_u64().unwrap() > 0);
    let bench = ["bench", "--lengths", "16", "--decode", "2", "--reps", "1"];
    assert!(ok(&bench, "").1.contains("lily-nano on "));
}

/// A table of 90 rows, about 600 tokens, and a question for one of them.
fn table(asked: &str) -> String {
    let things = [
        "apple", "bread", "chair", "door", "engine", "flower", "garden", "hammer", "island",
        "jacket", "kitchen", "lamp", "mirror", "needle", "orange", "pencil", "queen", "river",
        "stone", "table", "umbrella", "village", "window", "yellow", "bottle", "candle", "dinner",
        "forest", "guitar", "honey",
    ];
    let mut text = String::from("Here is a table:\n");
    for (i, thing) in things.iter().enumerate() {
        let _ = writeln!(text, "{thing}: {}", value(i));
    }
    for i in 0..60 {
        let _ = writeln!(text, "{}: {}", 100 + 37 * i, value(i + 30));
    }
    let _ = write!(text, "\nWhat is the value of {asked}?");
    text
}

fn value(row: usize) -> usize {
    1000 + (row * 7919) % 9000
}

#[test]
fn a_look_up_does_not_depend_on_where_chunks_end() {
    let rows = [("island", 8), ("stone", 18)];
    let mut right = 0;
    for (key, row) in rows {
        let answers = ["64", "512"].map(|chunk| {
            let args = ["run", "-", "--chunk", chunk, "--json"];
            let answer: Value = serde_json::from_str(&ok(&args, &table(key)).0).unwrap();
            assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 512, "{answer}");
            answer["text"].as_str().unwrap().trim().to_owned()
        });
        assert_eq!(answers[0], answers[1], "{key}");
        right += usize::from(answers[0].contains(&value(row).to_string()));
    }
    assert!(right > 0, "no look-up is right");
}
