//! From text to text: what the terminal and the server share.
//!
//! A [`Completion`] runs a prompt through an engine, step by step, and hands out text as it becomes
//! whole: ids to characters, the thought apart from the answer, and the answer up to a stop string;
//! [`complete`] runs one to its end. A [`Conversation`] keeps a sequence from turn to turn and feeds only what is new. A
//! [`Dialogue`] keeps the messages too, and [`Input`] is what a person may type in one. [`Formats`] makes what
//! keeps a reply to a schema, a grammar or calls of tools.

#![forbid(unsafe_code)]

mod completion;
mod conversation;
mod dialogue;
mod error;
mod format;
mod input;
mod json;
mod parser;
mod random;
mod script;
mod stepwise;
mod thought;
mod writer;

pub use completion::{
    CompletionRequest, Event, FinishReason, OnEvent, Outcome, Timings, complete_ids,
};
pub use conversation::Conversation;
pub use dialogue::{Dialogue, DialogueOptions, Turn};
pub use error::ChatError;
pub use format::{Bound, CallRule, Format, FormatError, Formats, Patience, Rules, Unkept};
pub use input::Input;
pub use json::{JsonError, kind as json_kind, parse_json};
pub use parser::{Ended, Events, MessageEvent, MessageParser, Parsed, ToolCall, ToolSpec};
pub use random::{RandomModelError, TokenizerFiles, random_model, vocab_size, write_tokenizer};
pub use script::{Script, ScriptError, ScriptedCompletion, complete_script};
pub use stepwise::{Completion, complete};
