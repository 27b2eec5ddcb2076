//! `POST /tokenize` and `POST /detokenize`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use lily_text::{ChatInput, Markers};
use serde_json::{Value, json};

use crate::app::App;
use crate::body::read_body;
use crate::completions::token_ids;
use crate::connection::Presence;
use crate::error::{ApiError, json_response};
use crate::fields::{Fields, Mode, wrong_type};
use crate::messages::messages;
use crate::respond::{IGNORED, ignored_header};
use crate::schema::check_model;
use crate::shared::Shared;
use crate::thinking::ThinkingOptions;
use crate::tools::Tools;

/// What a route makes of a body, with the names of fields that change nothing.
type Work = fn(&App, &[u8], Mode) -> Result<(Value, Vec<String>), ApiError>;

/// The ids of a text or of a conversation.
pub(crate) async fn tokenize(
    state: State<Arc<Shared>>,
    presence: Extension<Presence>,
    request: Request,
) -> Result<Response, ApiError> {
    answer(state, presence, request, ids).await
}

/// The text of ids.
pub(crate) async fn detokenize(
    state: State<Arc<Shared>>,
    presence: Extension<Presence>,
    request: Request,
) -> Result<Response, ApiError> {
    answer(state, presence, request, text).await
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    Extension(presence): Extension<Presence>,
    request: Request,
    work: Work,
) -> Result<Response, ApiError> {
    let app = shared.app()?;
    let mode = shared.mode(request.headers());
    let body = read_body(request, &app.body, &presence, shared.closing()).await?;
    let (value, ignored) = app.encode(move |app| work(app, &body, mode)).await?;
    let mut response = json_response(StatusCode::OK, &value);
    if let Some(ignored) = ignored_header(&ignored) {
        response.headers_mut().insert(IGNORED, ignored);
    }
    Ok(response)
}

fn ids(app: &App, body: &[u8], mode: Mode) -> Result<(Value, Vec<String>), ApiError> {
    let mut fields = Fields::parse(body, mode)?;
    check_model(&mut fields, &app.model_id)?;
    let tokenizer = app.encoder.tokenizer();
    let with_texts = fields.flag("return_token_strs")?.unwrap_or(false);
    // This family has no tokens that every text begins with.
    fields.ignore(&["add_special_tokens", "add_special"]);
    let prompt = match fields.text("prompt")? {
        Some(prompt) => Some(prompt),
        None => fields.text("content")?,
    };
    let ids = match prompt {
        Some(prompt) => tokenizer
            .encode(&prompt, Markers::Control)
            .map_err(|error| ApiError::text("prompt", &error))?,
        None => conversation(app, &mut fields, mode)?,
    };
    let ignored = fields.finish()?;
    let mut reply = json!({ "count": ids.len(), "max_model_len": app.context, "tokens": ids });
    if with_texts {
        let texts: Vec<String> = ids.iter().map(|&id| tokenizer.decode(&[id])).collect();
        reply["token_strs"] = json!(texts);
    }
    Ok((reply, ignored))
}

fn conversation(app: &App, fields: &mut Fields, mode: Mode) -> Result<Vec<u32>, ApiError> {
    let tools = Tools::take(fields)?;
    let mut options = ThinkingOptions::take(fields, app.encoder.template().variables())?.template;
    options.add_generation_prompt = fields.flag("add_generation_prompt")?.unwrap_or(true);
    let (messages, ignored) = match fields.take("messages") {
        None => {
            let message = "`prompt` is missing; give a text, or `messages`";
            return Err(ApiError::field("prompt", message));
        }
        given => messages(given, mode)?,
    };
    fields.list(ignored);
    let input = ChatInput { messages: &messages, tools: tools.shown.as_deref(), options: &options };
    let prompt = app.encoder.encode(&input, Markers::Plain);
    Ok(prompt.map_err(|error| ApiError::text("messages", &error))?.ids)
}

fn text(app: &App, body: &[u8], mode: Mode) -> Result<(Value, Vec<String>), ApiError> {
    let mut fields = Fields::parse(body, mode)?;
    check_model(&mut fields, &app.model_id)?;
    let ids = match fields.take("tokens") {
        None => return Err(ApiError::field("tokens", "`tokens` is missing; give token ids")),
        Some(Value::Array(ids)) => ids,
        Some(other) => return Err(wrong_type("tokens", "an array of token ids", &other)),
    };
    let ids = token_ids("tokens", &ids, app.vocab)?;
    let ignored = fields.finish()?;
    let text = app.encoder.tokenizer().decode(&ids);
    // The one name is vLLM's, the other llama.cpp's.
    Ok((json!({ "prompt": text, "content": text }), ignored))
}
