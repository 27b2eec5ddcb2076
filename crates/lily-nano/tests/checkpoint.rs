//! The built-in model as a checkpoint.

#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::path::Path;

use lily_model::{Checkpoint, Config, GenerationDefaults, Inspection, stop_tokens};
use lily_nano::NANO;
use lily_text::{ChatInput, Markers, PromptEncoder, TemplateOptions, Thinking};

/// What a repository and a mapped file are both good for.
const MOST_BYTES: usize = 16 << 20;

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("model")
}

fn addresses(bytes: &[u8]) -> Range<usize> {
    let first = bytes.as_ptr() as usize;
    first..first + bytes.len()
}

#[test]
fn weights_are_used_where_they_are() {
    let checkpoint = Checkpoint::open(&NANO).unwrap();
    let weights = checkpoint.weights().unwrap();
    let mut matrices = 0;
    for weight in weights.values() {
        let lily_plan::Weight::Matrix(matrix) = weight else { continue };
        for segment in matrix.segments() {
            let codes = addresses(&segment.codes);
            let holds = |(_, file): &(&str, &[u8])| {
                let file = addresses(file);
                file.start <= codes.start && codes.end <= file.end
            };
            assert!(NANO.files.iter().any(holds), "{} was copied", segment.tensor);
            matrices += 1;
        }
    }
    assert!(matrices > 100, "{matrices}");
    // Nothing is on a disk to be read again.
    assert!(checkpoint.mapped_files().is_empty());
    assert!(checkpoint.warnings().is_empty(), "{:?}", checkpoint.warnings());
}

#[test]
fn files_are_aligned_and_none_has_over_16_mib() {
    for (name, bytes) in NANO.files {
        assert!(bytes.len() <= MOST_BYTES, "{name}");
        assert_eq!(addresses(bytes).start % 64, 0, "{name}");
    }
}

#[test]
fn the_program_and_the_folder_hold_the_same_model() {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut packed: Vec<&str> = NANO.files.iter().map(|(name, _)| *name).collect();
    packed.sort_unstable();
    assert_eq!(names, packed);
    let (inside, outside) = (Inspection::of(&NANO), Inspection::of(folder().as_path()));
    assert!(inside.supported && outside.supported, "{:?}", inside.error);
    assert_eq!(inside.folder, "lily-nano");
    assert_eq!((inside.parameters, inside.bytes), (outside.parameters, outside.bytes));
    assert_eq!(inside.files.len(), 2);
    let config = Config::read(&NANO).unwrap();
    assert_eq!(
        stop_tokens(&NANO, &config).unwrap(),
        stop_tokens(folder().as_path(), &config).unwrap()
    );
    // It computes better than it guesses.
    assert_eq!(GenerationDefaults::read(&NANO).unwrap().sampling().temperature, 0.0);
}

#[test]
fn every_control_token_of_the_template_is_one_token() {
    let encoder = PromptEncoder::open(&NANO).unwrap();
    let tokenizer = encoder.tokenizer();
    for token in
        ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
    {
        assert!(tokenizer.id_of(token).is_some(), "{token}");
    }
    let messages = [serde_json::json!({ "role": "user", "content": "Hi" })];
    for (think, state) in [(Some(true), Thinking::Open), (Some(false), Thinking::Closed)] {
        let options = TemplateOptions { enable_thinking: think, ..TemplateOptions::default() };
        let input = ChatInput { messages: &messages, tools: None, options: &options };
        assert_eq!(encoder.encode(&input, Markers::Plain).unwrap().thinking, state);
    }
}
