//! `POST /v1/completions`: text that goes on, without a chat template.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::Response;
use lily_text::{Markers, Thinking};
use serde_json::Value;

use crate::app::{App, Prepared};
use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::reply::Kind;
use crate::routes::read_body;
use crate::schema::Common;
use crate::sse::respond;

/// Goes on with a text.
pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let body = read_body(body)?;
    let shared = Arc::clone(&app);
    let _turn = app.encoding.acquire().await;
    let prepared = tokio::task::spawn_blocking(move || prepare(&shared, &body))
        .await
        .map_err(|_| ApiError::internal("the request could not be encoded"))??;
    respond(&app, Kind::Text, prepared).await
}

fn prepare(app: &App, body: &[u8]) -> Result<Prepared, ApiError> {
    let mut fields = Fields::parse(body)?;
    let common = Common::take(&mut fields, &app.served())?;
    fields.refuse("echo", |value| *value == Value::Bool(false))?;
    fields.refuse("suffix", |value| value == "")?;
    fields.refuse("best_of", |value| value.as_u64() == Some(1))?;
    fields.refuse("logprobs", |_| false)?;
    let prompt = fields.take("prompt");
    let ignored = fields.finish()?;
    let prompt = encode(app, prompt)?;
    app.check_prompt(&prompt, "prompt")?;
    // The text is handed out as it comes, tags and all.
    Ok(Prepared { prompt, thinking: Thinking::Absent, common, ignored })
}

/// A text, or token ids; either may be the only element of an array.
fn encode(app: &App, prompt: Option<Value>) -> Result<Vec<u32>, ApiError> {
    let expected = "a string, or an array of token ids";
    match prompt {
        None => Err(ApiError::field("prompt", "`prompt` is missing; give a text")),
        // Whoever writes a prompt by hand writes its control tokens too.
        Some(Value::String(text)) => app
            .encoder
            .tokenizer()
            .encode(&text, Markers::Control)
            .map_err(|error| ApiError::text("prompt", &error)),
        Some(Value::Array(mut items)) => match items.as_mut_slice() {
            [Value::String(_) | Value::Array(_)] => encode(app, items.pop()),
            [Value::String(_) | Value::Array(_), ..] => {
                let found = items.len();
                let message = format!("`prompt` has {found} prompts, but one is supported");
                Err(ApiError::field("prompt", message))
            }
            ids => ids.iter().map(|id| token(app, id)).collect(),
        },
        Some(other) => Err(wrong_type("prompt", expected, &other)),
    }
}

fn token(app: &App, value: &Value) -> Result<u32, ApiError> {
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
    id.filter(|&id| (id as usize) < app.vocab).ok_or_else(|| {
        wrong_type("prompt", &format!("made of token ids from 0 to {}", app.vocab - 1), value)
    })
}
