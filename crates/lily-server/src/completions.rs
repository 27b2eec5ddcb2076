//! `POST /v1/completions`: text that goes on, without a chat template.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use lily_text::{Markers, Thinking};
use serde_json::Value;

use crate::app::{App, Prepared, PreparedPrompt};
use crate::binding::Wish;
use crate::body::read_body;
use crate::connection::Presence;
use crate::error::ApiError;
use crate::fields::{Fields, Mode, whole, wrong_type};
use crate::reply::Kind;
use crate::respond::respond;
use crate::schema::{Common, MAX_CHOICES, MAX_TOP_LOGPROBS, Served};
use crate::shared::Shared;

/// Goes on with a text.
pub(crate) async fn completions(
    State(shared): State<Arc<Shared>>,
    Extension(presence): Extension<Presence>,
    request: Request,
) -> Result<Response, ApiError> {
    let app = shared.app()?;
    let mode = shared.mode(request.headers());
    let body = read_body(request, &app.body, &presence, shared.closing()).await?;
    let (mut prepared, wish) = app.encode(move |app| prepare(app, &body, mode)).await?;
    app.binder.bind(&mut prepared, wish).await?;
    respond(app, Kind::Text, prepared, presence)
}

fn prepare(app: &App, body: &[u8], mode: Mode) -> Result<(Prepared, Wish), ApiError> {
    let TextRequest { mut common, prompts, echo, ignored } =
        TextRequest::parse(body, mode, &app.served())?;
    let mut prepared = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let tokenizer = app.encoder.tokenizer();
        let (ids, text) = match prompt {
            Prompt::Ids(ids) => {
                let text = echo.then(|| tokenizer.decode(&ids));
                (ids, text)
            }
            // Whoever writes a prompt by hand writes its control tokens too.
            Prompt::Text(text) => {
                let ids = tokenizer.encode(&text, Markers::Control);
                (ids.map_err(|error| ApiError::text("prompt", &error))?, echo.then_some(text))
            }
        };
        app.check_prompt(&ids, "prompt")?;
        prepared.push(PreparedPrompt { ids, echo: text.map(Into::into) });
    }
    let wish = Wish { format: common.format.take(), ..Wish::default() };
    let prepared = Prepared {
        prompts: prepared,
        // The text is handed out as it comes, tags and all.
        thinking: Thinking::Absent,
        thinking_budget: None,
        tools: Vec::new(),
        single_call: false,
        format: None,
        common,
        ignored,
    };
    Ok((prepared, wish))
}

/// A request that is checked, as far as it can be without a tokenizer.
#[derive(Debug)]
pub(crate) struct TextRequest {
    pub common: Common,
    pub prompts: Vec<Prompt>,
    /// Whether the reply begins with the prompt.
    pub echo: bool,
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
    pub fn parse(body: &[u8], mode: Mode, served: &Served) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body, mode)?;
        let mut common = Common::take(&mut fields, served)?;
        let echo = fields.flag("echo")?.unwrap_or(false);
        let logprobs = fields.integer("logprobs", 0..=MAX_TOP_LOGPROBS)?;
        common.logprobs = logprobs.and_then(|top| usize::try_from(top).ok());
        if echo && common.logprobs.is_some() {
            let message = "`logprobs` of an `echo` are not supported by this server; leave one out";
            return Err(ApiError::field("logprobs", message));
        }
        fields.refuse("suffix", |value| value == "")?;
        fields.refuse("best_of", |value| whole(value) == Some(common.n as i64))?;
        let prompts = Prompt::all(fields.take("prompt"), served.vocab)?;
        let choices = prompts.len().saturating_mul(common.n);
        if choices > MAX_CHOICES {
            let message = format!(
                "`prompt` and `n` ask for {choices} texts, but at most {MAX_CHOICES} are supported"
            );
            return Err(ApiError::field("prompt", message));
        }
        let ignored = fields.finish()?;
        Ok(Self { common, prompts, echo, ignored })
    }
}

impl Prompt {
    /// A text or token ids, or an array of several.
    fn all(value: Option<Value>, vocab: usize) -> Result<Vec<Self>, ApiError> {
        match value {
            None => Err(ApiError::field("prompt", "`prompt` is missing; give a text")),
            Some(Value::String(text)) => Ok(vec![Self::Text(text)]),
            Some(Value::Array(items)) => match items.first() {
                Some(Value::String(_) | Value::Array(_)) => {
                    let named = |(index, item)| (format!("prompt[{index}]"), item);
                    let items = items.into_iter().enumerate().map(named);
                    items.map(|(name, item)| Self::one(&name, item, vocab)).collect()
                }
                _ => Ok(vec![Self::Ids(token_ids("prompt", &items, vocab)?)]),
            },
            Some(other) => Err(wrong_type("prompt", "a string, or an array of token ids", &other)),
        }
    }

    fn one(name: &str, value: Value, vocab: usize) -> Result<Self, ApiError> {
        match value {
            Value::String(text) => Ok(Self::Text(text)),
            Value::Array(ids) => Ok(Self::Ids(token_ids(name, &ids, vocab)?)),
            other => Err(wrong_type(name, "a string, or an array of token ids", &other)),
        }
    }
}

/// Token ids in the array `field`.
pub(crate) fn token_ids(field: &str, ids: &[Value], vocab: usize) -> Result<Vec<u32>, ApiError> {
    let token = |(index, value): (usize, &Value)| {
        let id = whole(value).and_then(|id| u32::try_from(id).ok());
        id.filter(|&id| (id as usize) < vocab).ok_or_else(|| {
            let expected = format!("a token id from 0 to {}", vocab - 1);
            wrong_type(&format!("{field}[{index}]"), &expected, value)
        })
    };
    ids.iter().enumerate().map(token).collect()
}
