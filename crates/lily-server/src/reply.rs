//! Replies as JSON: whole ones and the chunks of a stream.

use std::time::{SystemTime, UNIX_EPOCH};

use lily_model::engine::Chosen;
use lily_text::Tokenizer;
use serde_json::{Value, json};

use crate::logprobs::{self, Place};
use crate::schema::random;
use crate::update::{Finished, Update};

/// Which route is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Text,
}

/// One reply; all its chunks have one id.
#[derive(Debug)]
pub(crate) struct Reply {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
    /// Of the texts of tokens, if their probabilities are told.
    tokenizer: Option<Tokenizer>,
}

/// A choice as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    reasoning: String,
    content: String,
    calls: Vec<Call>,
    tokens: Vec<Chosen>,
    finished: Option<Finished>,
}

#[derive(Debug)]
struct Call {
    id: String,
    name: String,
    arguments: String,
    is_whole: bool,
}

impl Choice {
    /// A choice whose text begins with `text`.
    pub fn with_text(text: String) -> Self {
        Self { content: text, ..Self::default() }
    }

    /// Adds what is new.
    pub fn add(&mut self, update: Update) {
        match update {
            Update::Reasoning(text) => self.reasoning.push_str(&text),
            Update::Content(text) => self.content.push_str(&text),
            Update::CallStarted { name, .. } => {
                let (id, arguments) = (call_id(), String::new());
                self.calls.push(Call { id, name, arguments, is_whole: false });
            }
            Update::CallArguments { index, json } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(&json);
                }
            }
            Update::CallFinished { index } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.is_whole = true;
                }
            }
            Update::Token(token) => self.tokens.push(token),
            Update::Finished(finished) => self.finished = Some(finished),
            Update::Prefilled(_) | Update::Failed(_) => {}
        }
    }

    /// How it ended, if it has.
    pub fn finished(&self) -> Option<&Finished> {
        self.finished.as_ref()
    }

    fn message(&self) -> Value {
        let calls: Vec<Value> = self
            .calls
            .iter()
            .filter(|call| call.is_whole)
            .map(|call| {
                let function = json!({ "name": call.name, "arguments": call.arguments });
                json!({ "id": call.id, "type": "function", "function": function })
            })
            .collect();
        let mut message = json!({ "role": "assistant", "content": self.content });
        if !calls.is_empty() && self.content.is_empty() {
            message["content"] = Value::Null;
        }
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = json!(self.reasoning);
        }
        if !calls.is_empty() {
            message["tool_calls"] = Value::Array(calls);
        }
        message["refusal"] = Value::Null;
        message
    }
}

impl Reply {
    /// A reply of a model; with `tokenizer` it tells the probabilities of tokens.
    pub fn new(kind: Kind, model: &str, tokenizer: Option<Tokenizer>) -> Self {
        let prefix = match kind {
            Kind::Chat => "chatcmpl",
            Kind::Text => "cmpl",
        };
        let id = format!("{prefix}-{:016x}{:016x}", random(), random());
        Self { kind, id, created: unix_seconds(), model: model.into(), tokenizer }
    }

    /// The whole reply; each of `per_prompt` choices in a row has the same prompt.
    pub fn whole(&self, choices: &[Choice], per_prompt: usize) -> Value {
        let object = match self.kind {
            Kind::Chat => "chat.completion",
            Kind::Text => "text_completion",
        };
        let listed = choices.iter().enumerate().map(|(index, choice)| self.choice(index, choice));
        let mut reply = self.frame(object, listed.collect());
        let finished: Vec<&Finished> = choices.iter().filter_map(Choice::finished).collect();
        reply["usage"] = usage(&finished, per_prompt);
        reply
    }

    fn choice(&self, index: usize, choice: &Choice) -> Value {
        let mut listed = json!({ "index": index });
        match self.kind {
            Kind::Text => listed["text"] = json!(choice.content),
            Kind::Chat => listed["message"] = choice.message(),
        }
        listed["logprobs"] = self.logprobs(&choice.tokens, &mut Place::default());
        listed["finish_reason"] = json!(choice.finished.as_ref().map(|f| f.reason.name()));
        debug_fields(&mut listed, choice.finished.as_ref());
        listed
    }

    /// Log probabilities as the API has them, null if nobody asked, and the place behind the tokens.
    pub fn logprobs(&self, tokens: &[Chosen], place: &mut Place) -> Value {
        match (&self.tokenizer, self.kind) {
            (None, _) => Value::Null,
            (Some(tokenizer), Kind::Chat) => logprobs::chat(tokenizer, tokens),
            (Some(tokenizer), Kind::Text) => logprobs::text(tokenizer, tokens, place),
        }
    }

    /// The first chunk of a choice of a chat; a stream of text needs none.
    pub fn opening(&self, choice: usize) -> Option<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        (self.kind == Kind::Chat).then(|| self.chunk(choice, delta, Value::Null))
    }

    /// A chunk with what is new; `None` if there is nothing to say.
    pub fn update(&self, choice: usize, update: &Update) -> Option<Value> {
        let delta = match (self.kind, update) {
            (Kind::Text, Update::Content(text)) => json!(text),
            (Kind::Chat, Update::Reasoning(text)) => json!({ "reasoning_content": text }),
            (Kind::Chat, Update::Content(text)) => json!({ "content": text }),
            (Kind::Chat, Update::CallStarted { index, name }) => {
                let function = json!({ "name": name, "arguments": "" });
                json!({ "tool_calls": [
                    { "index": index, "id": call_id(), "type": "function", "function": function }
                ] })
            }
            (Kind::Chat, Update::CallArguments { index, json }) => {
                json!({ "tool_calls": [{ "index": index, "function": { "arguments": json } }] })
            }
            (_, Update::Finished(finished)) => return Some(self.closing(choice, finished)),
            _ => return None,
        };
        Some(self.chunk(choice, delta, Value::Null))
    }

    /// The one chunk that ends a choice.
    fn closing(&self, choice: usize, finished: &Finished) -> Value {
        let delta = match self.kind {
            Kind::Chat => json!({}),
            Kind::Text => json!(""),
        };
        let mut chunk = self.chunk(choice, delta, json!(finished.reason.name()));
        debug_fields(&mut chunk["choices"][0], Some(finished));
        chunk
    }

    /// The chunk behind the last choice.
    pub fn usage(&self, finished: &[&Finished], per_prompt: usize) -> Value {
        let mut chunk = self.frame(self.chunk_object(), Vec::new());
        chunk["usage"] = usage(finished, per_prompt);
        chunk
    }

    fn chunk(&self, index: usize, delta: Value, reason: Value) -> Value {
        let field = match self.kind {
            Kind::Chat => "delta",
            Kind::Text => "text",
        };
        let mut choice = json!({ "index": index });
        choice[field] = delta;
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = reason;
        self.frame(self.chunk_object(), vec![choice])
    }

    fn chunk_object(&self) -> &'static str {
        match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Text => "text_completion",
        }
    }

    fn frame(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("lily-", env!("CARGO_PKG_VERSION")),
            "choices": choices,
        })
    }
}

/// What helps to find out why a reply is as it is.
fn debug_fields(choice: &mut Value, finished: Option<&Finished>) {
    if let Some(text) = finished.and_then(|finished| finished.unfinished_call.as_ref()) {
        choice["lily"] = json!({ "unfinished_call": text });
    }
}

/// A prompt counts once, however many choices it has.
fn usage(finished: &[&Finished], per_prompt: usize) -> Value {
    let sum = |of: fn(&Finished) -> usize| finished.iter().map(|f| of(f)).sum::<usize>();
    // Of the first choice: the others go on with what it has read.
    let prompts = || finished.iter().step_by(per_prompt.max(1));
    let prompt_tokens: usize = prompts().map(|f| f.prompt_tokens).sum();
    let cached_tokens: usize = prompts().map(|f| f.cached_tokens).sum();
    let completion_tokens = sum(|f| f.completion_tokens);
    json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": { "cached_tokens": cached_tokens },
        "completion_tokens_details": { "reasoning_tokens": sum(|f| f.reasoning_tokens) },
    })
}

fn call_id() -> String {
    format!("call_{:016x}{:08x}", random(), random() >> 32)
}

/// Now; 0 on a clock that is set before 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
