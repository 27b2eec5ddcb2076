//! Routes, and what answers where there is none.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::app::App;
use crate::chat::chat;
use crate::completions::completions;
use crate::error::{ApiError, json_response};
use crate::guard::{Guard, guard};

/// All routes behind the guard.
pub(crate) fn routes(app: Arc<App>, guarded: Guard, body_limit: usize) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/health", get(health))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(body_limit))
        .layer(from_fn_with_state(Arc::new(guarded), guard))
        .with_state(app)
}

/// The bytes of a body, or why they cannot be had.
pub(crate) fn read_body(body: Result<Bytes, BytesRejection>) -> Result<Bytes, ApiError> {
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let message = "the body is larger than this server accepts; send less";
            ApiError::request(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
        }
        _ => {
            let message = "the body could not be read to its end; send it again";
            ApiError::request(StatusCode::BAD_REQUEST, "incomplete_body", message)
        }
    })
}

async fn models(State(app): State<Arc<App>>) -> Response {
    json_response(StatusCode::OK, &json!({ "object": "list", "data": [description(&app)] }))
}

async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    if id != app.model_id {
        return Err(ApiError::model_not_found(&id, &app.model_id));
    }
    Ok(json_response(StatusCode::OK, &description(&app)))
}

fn description(app: &App) -> Value {
    json!({
        "id": app.model_id,
        "object": "model",
        "created": app.created,
        "owned_by": "lily",
        "context_length": app.context,
        "max_model_len": app.context,
        // Without `max_tokens` an answer may take what the prompt leaves of the context.
        "max_output_tokens": app.context - 1,
    })
}

async fn health(State(app): State<Arc<App>>) -> Response {
    let status = json!({
        "status": "ok",
        "model": app.model_id,
        "running": usize::from(app.worker.is_busy()),
        "waiting": app.worker.queue.waiting(),
    });
    json_response(StatusCode::OK, &status)
}

async fn not_found(method: Method, uri: Uri) -> ApiError {
    let message = format!("there is no route {method} {}; see docs/server-api.md", uri.path());
    ApiError::request(StatusCode::NOT_FOUND, "unknown_route", message)
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not answer {method}; use the other of GET and POST", uri.path());
    ApiError::request(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}
