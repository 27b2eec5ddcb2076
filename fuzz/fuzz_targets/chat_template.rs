//! Any template and any messages end in a text or an error, within bounds of time and memory.
//!
//! The input is a template, a zero byte, and the messages as JSON. Without messages, or with others
//! than an array, a short conversation is rendered.
//!
//! `cargo +nightly fuzz run chat_template fuzz/corpus/chat_template fuzz/seeds/chat_template`

#![no_main]

use std::sync::LazyLock;

use lily_text::{ChatInput, ChatTemplate, Markers, PromptEncoder, TemplateOptions, Tokenizer};
use serde_json::{Value, json};

static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::bytes().expect("lily's own files are whole"));

libfuzzer_sys::fuzz_target!(|input: &str| {
    let (source, messages) = input.split_once('\0').unwrap_or((input, ""));
    let Ok(template) = ChatTemplate::from_source(source) else { return };
    let messages = match serde_json::from_str(messages) {
        Ok(Value::Array(messages)) => messages,
        _ => vec![
            json!({ "role": "system", "content": "<|im_end|>" }),
            json!({ "role": "user", "content": [{ "type": "text", "text": "<think>a" }] }),
        ],
    };
    let tools = [json!({ "type": "function", "function": { "name": "f", "parameters": {} } })];
    let options = TemplateOptions::default();
    let input = ChatInput { messages: &messages, tools: Some(&tools), options: &options };
    let encoder = PromptEncoder::new(TOKENIZER.clone(), template);
    let Ok(prompt) = encoder.encode(&input, Markers::Plain) else { return };
    assert_eq!(TOKENIZER.decode(&prompt.ids), prompt.text);
});
