//! Routes, and what answers where there is none.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::app::App;
use crate::chat::chat;
use crate::completions::completions;
use crate::error::{ApiError, json_response};
use crate::guard::{Guard, guard};
use crate::shared::Shared;

/// All routes behind the guard.
pub(crate) fn routes(shared: Arc<Shared>, guarded: Guard) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/health", get(health))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(Arc::new(guarded), guard))
        .with_state(shared)
}

async fn models(State(shared): State<Arc<Shared>>) -> Result<Response, ApiError> {
    let list = json!({ "object": "list", "data": [description(shared.app()?)] });
    Ok(json_response(StatusCode::OK, &list))
}

async fn model(
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

async fn health(State(shared): State<Arc<Shared>>) -> Response {
    let app = match shared.app() {
        Ok(app) => app,
        Err(loading) => {
            let mut status = json!({ "status": "loading", "model": shared.model_id });
            status["error"] = loading.body()["error"].take();
            let mut response = loading.into_response();
            *response.body_mut() = status.to_string().into();
            return response;
        }
    };
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
