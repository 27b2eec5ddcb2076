//! `GET /v1/models`: what there is to know about the one model.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::{ApiError, json_response};
use crate::format::KINDS;
use crate::shared::Shared;

/// The list of models.
pub(crate) async fn models(State(shared): State<Arc<Shared>>) -> Result<Response, ApiError> {
    let list = json!({ "object": "list", "data": [description(shared.app()?)] });
    Ok(json_response(StatusCode::OK, &list))
}

/// One model.
pub(crate) async fn model(
    State(shared): State<Arc<Shared>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id.map_err(|_| {
        let message = "the model's name in the path has a broken percent escape; give it as UTF-8";
        ApiError::request(StatusCode::BAD_REQUEST, "invalid_path", message)
    })?;
    if id != shared.model_id {
        return Err(ApiError::model_not_found(&id, &shared.model_id));
    }
    Ok(json_response(StatusCode::OK, &description(shared.app()?)))
}

fn description(app: &App) -> Value {
    let knows = |name: &str| app.encoder.template().variables().iter().any(|known| known == name);
    let switches: &[&str] = match knows("enable_thinking") {
        true => &[
            "enable_thinking",
            "reasoning_effort",
            "reasoning.effort",
            "reasoning.enabled",
            "thinking.type",
            "chat_template_kwargs.enable_thinking",
        ],
        false => &[],
    };
    json!({
        "id": app.model_id,
        "object": "model",
        "created": app.created,
        "owned_by": "lily",
        // Of a toy that it is one.
        "note": app.note,
        "context_length": app.context,
        "max_model_len": app.context,
        "max_output_tokens": app.context - 1,
        // Without `max_tokens` an answer may take what the prompt leaves of the context.
        "default_max_tokens": Value::Null,
        "input_modalities": ["text"],
        "output_modalities": ["text"],
        "vision": false,
        "tools": true,
        "tool_format": "qwen-xml",
        "thinking": {
            "switches": switches,
            "budget": "thinking_budget",
            "field": "reasoning_content",
            "preserve": knows("preserve_thinking"),
        },
        "tool_choice": ["auto", "none", "required", "function"],
        "structured_output": true,
        "formats": KINDS,
    })
}
