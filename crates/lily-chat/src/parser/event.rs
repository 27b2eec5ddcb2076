//! What goes into the parser and what comes out of it.

use std::ops::Range;

use serde_json::Value;

use crate::completion::FinishReason;

/// A tool that a reply may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolSpec {
    /// Name of the function.
    pub name: String,
    /// JSON schema of its parameters, an object schema; `Value::Null` if there is none. It decides
    /// the type of each argument.
    pub parameters: Value,
}

impl ToolSpec {
    /// A tool with the JSON schema of its parameters.
    pub fn new(name: impl Into<String>, parameters: Value) -> Self {
        Self { name: name.into(), parameters }
    }
}

/// A finished call of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ToolCall {
    /// Name of the function.
    pub name: String,
    /// Text of a JSON object, keys in the order in which they were generated.
    pub arguments: String,
}

/// How the text ended, as far as the parser cannot know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The model ended its turn with a stop token or another control token.
    StopToken,
    /// The token limit, or the end of the context.
    Limit,
    /// The work was stopped from outside.
    Cancelled,
}

/// A part of the reply. The joined parts depend on the joined text only, not on its pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageEvent<'a> {
    /// Text of the thought.
    Reasoning(&'a str),
    /// Text of the answer.
    Content(&'a str),
    /// A call begins. Comes once for each index; indexes count from 0 without gaps.
    CallStarted {
        /// Place among the calls of the reply.
        index: usize,
        /// Name of the tool, one of the request's.
        name: &'a str,
    },
    /// A piece of the call's arguments. The pieces of a finished call join to a JSON object.
    CallArguments {
        /// Place among the calls of the reply.
        index: usize,
        /// JSON text.
        json: &'a str,
    },
    /// A call is whole. A started call without this event is unfinished and must not be run.
    CallFinished {
        /// Place among the calls of the reply.
        index: usize,
        /// Bytes of the joined text that the call was read from.
        span: Range<usize>,
    },
    /// The last event, exactly once, from [`finish`](super::MessageParser::finish).
    Finish {
        /// Why the reply ended.
        reason: FinishReason,
        /// Text of a call that did not become whole, for a debug field.
        unfinished: Option<&'a str>,
    },
}

/// A whole reply, collected from the events that a stream is made of.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Parsed {
    /// The thought.
    pub reasoning: String,
    /// The answer.
    pub content: String,
    /// Finished calls in the order in which they began.
    pub tool_calls: Vec<ToolCall>,
    /// Why the reply ended; none before the end.
    pub finish: Option<FinishReason>,
    /// Text of a call that did not become whole.
    pub unfinished: Option<String>,
    /// The call that is being generated.
    open: ToolCall,
}

impl Parsed {
    /// Adds an event.
    pub fn add(&mut self, event: &MessageEvent<'_>) {
        match event {
            MessageEvent::Reasoning(text) => self.reasoning.push_str(text),
            MessageEvent::Content(text) => self.content.push_str(text),
            MessageEvent::CallStarted { name, .. } => {
                self.open = ToolCall { name: (*name).to_string(), arguments: String::new() };
            }
            MessageEvent::CallArguments { json, .. } => self.open.arguments.push_str(json),
            MessageEvent::CallFinished { .. } => {
                self.tool_calls.push(std::mem::take(&mut self.open));
            }
            MessageEvent::Finish { reason, unfinished } => {
                self.finish = Some(*reason);
                self.unfinished = unfinished.map(str::to_string);
                self.open = ToolCall::default();
            }
        }
    }
}
