//! Reading the model's output.

mod event;

pub use event::{Ended, MessageEvent, Parsed, ToolCall, ToolSpec};
