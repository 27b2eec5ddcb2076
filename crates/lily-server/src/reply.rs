//! Replies as JSON: whole ones and the chunks of a stream.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::queue::Finished;
use crate::schema::random;

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
}

impl Reply {
    pub fn new(kind: Kind, model: &str) -> Self {
        let prefix = match kind {
            Kind::Chat => "chatcmpl",
            Kind::Text => "cmpl",
        };
        let id = format!("{prefix}-{:016x}{:016x}", random(), random());
        Self { kind, id, created: unix_seconds(), model: model.into() }
    }

    /// The whole reply.
    pub fn whole(&self, reasoning: &str, content: &str, finished: &Finished) -> Value {
        let reason = finished.reason.name();
        let choice = match self.kind {
            Kind::Text => {
                json!({ "index": 0, "text": content, "logprobs": null, "finish_reason": reason })
            }
            Kind::Chat => {
                let mut message = json!({ "role": "assistant", "content": content });
                if !reasoning.is_empty() {
                    message["reasoning_content"] = json!(reasoning);
                }
                message["refusal"] = Value::Null;
                json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": reason })
            }
        };
        let object = match self.kind {
            Kind::Chat => "chat.completion",
            Kind::Text => "text_completion",
        };
        let mut reply = self.frame(object, json!([choice]));
        reply["usage"] = usage(finished);
        reply
    }

    /// The first chunk of a chat; a stream of text needs none.
    pub fn opening(&self) -> Option<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        (self.kind == Kind::Chat).then(|| self.chunk(delta, Value::Null))
    }

    /// A chunk with new text.
    pub fn text(&self, reasoning: &str, content: &str) -> Value {
        match self.kind {
            Kind::Text => self.chunk(json!(content), Value::Null),
            Kind::Chat => {
                let mut delta = json!({});
                if !reasoning.is_empty() {
                    delta["reasoning_content"] = json!(reasoning);
                }
                if !content.is_empty() {
                    delta["content"] = json!(content);
                }
                self.chunk(delta, Value::Null)
            }
        }
    }

    /// The one chunk that ends the choice.
    pub fn closing(&self, finished: &Finished) -> Value {
        let delta = match self.kind {
            Kind::Chat => json!({}),
            Kind::Text => json!(""),
        };
        self.chunk(delta, json!(finished.reason.name()))
    }

    /// The chunk behind the last choice.
    pub fn usage(&self, finished: &Finished) -> Value {
        let mut chunk = self.frame(self.chunk_object(), json!([]));
        chunk["usage"] = usage(finished);
        chunk
    }

    fn chunk(&self, delta: Value, reason: Value) -> Value {
        let field = match self.kind {
            Kind::Chat => "delta",
            Kind::Text => "text",
        };
        let mut choice = json!({ "index": 0 });
        choice[field] = delta;
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = reason;
        self.frame(self.chunk_object(), json!([choice]))
    }

    fn chunk_object(&self) -> &'static str {
        match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Text => "text_completion",
        }
    }

    fn frame(&self, object: &str, choices: Value) -> Value {
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

fn usage(finished: &Finished) -> Value {
    json!({
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
        // Every request is read from its first token.
        "prompt_tokens_details": { "cached_tokens": 0 },
        "completion_tokens_details": { "reasoning_tokens": finished.reasoning_tokens },
    })
}

/// Now; 0 on a clock that is set before 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
