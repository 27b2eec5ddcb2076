//! `POST /v1/completions`: text that goes on, without a chat template.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use lily_text::{Markers, Thinking};
use serde_json::Value;

use crate::app::{App, Prepared};
use crate::body::read_body;
use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::reply::Kind;
use crate::schema::{Common, Served};
use crate::shared::Shared;

/// Goes on with a text.
pub(crate) async fn completions(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let app = shared.app()?;
    let body = read_body(request, &app.body, shared.closing()).await?;
    app.answer(Kind::Text, body, prepare).await
}

fn prepare(app: &App, body: &[u8]) -> Result<Prepared, ApiError> {
    let TextRequest { common, prompt, ignored } = TextRequest::parse(body, &app.served())?;
    let prompt = match prompt {
        Prompt::Ids(ids) => ids,
        // Whoever writes a prompt by hand writes its control tokens too.
        Prompt::Text(text) => app
            .encoder
            .tokenizer()
            .encode(&text, Markers::Control)
            .map_err(|error| ApiError::text("prompt", &error))?,
    };
    app.check_prompt(&prompt, "prompt")?;
    // The text is handed out as it comes, tags and all.
    Ok(Prepared { prompt, thinking: Thinking::Absent, common, ignored })
}

/// A request that is checked, as far as it can be without a tokenizer.
#[derive(Debug)]
pub(crate) struct TextRequest {
    pub common: Common,
    pub prompt: Prompt,
    /// Fields that change nothing.
    pub ignored: Vec<String>,
}

/// What a text goes on from.
#[derive(Debug)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

impl TextRequest {
    /// Checks a body.
    pub fn parse(body: &[u8], served: &Served) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let common = Common::take(&mut fields, served)?;
        fields.refuse("echo", |value| *value == Value::Bool(false))?;
        fields.refuse("suffix", |value| value == "")?;
        fields.refuse("best_of", |value| value.as_u64() == Some(1))?;
        fields.refuse("logprobs", |_| false)?;
        let prompt = fields.take("prompt");
        let ignored = fields.finish()?;
        Ok(Self { common, prompt: Prompt::parse(prompt, served.vocab)?, ignored })
    }
}

impl Prompt {
    /// A text, or token ids; either may be the only element of an array.
    fn parse(value: Option<Value>, vocab: usize) -> Result<Self, ApiError> {
        match value {
            None => Err(ApiError::field("prompt", "`prompt` is missing; give a text")),
            Some(Value::String(text)) => Ok(Self::Text(text)),
            Some(Value::Array(mut items)) => match items.as_mut_slice() {
                [Value::String(_) | Value::Array(_)] => Self::parse(items.pop(), vocab),
                [Value::String(_) | Value::Array(_), ..] => {
                    let found = items.len();
                    let message = format!("`prompt` has {found} prompts, but one is supported");
                    Err(ApiError::field("prompt", message))
                }
                ids => {
                    Ok(Self::Ids(ids.iter().map(|id| token(id, vocab)).collect::<Result<_, _>>()?))
                }
            },
            Some(other) => Err(wrong_type("prompt", "a string, or an array of token ids", &other)),
        }
    }
}

fn token(value: &Value, vocab: usize) -> Result<u32, ApiError> {
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
    id.filter(|&id| (id as usize) < vocab).ok_or_else(|| {
        wrong_type("prompt", &format!("made of token ids from 0 to {}", vocab - 1), value)
    })
}
