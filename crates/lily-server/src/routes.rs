//! Routes, and what answers where there is none.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use serde_json::json;

use crate::chat::chat;
use crate::completions::completions;
use crate::error::{ApiError, json_response};
use crate::fields::brief;
use crate::guard::{Guard, guard};
use crate::metrics;
use crate::models::{model, models};
use crate::openapi::openapi;
use crate::page;
use crate::shared::Shared;
use crate::tokens::{detokenize, tokenize};

/// All routes but the parts of the page.
fn table() -> Vec<(&'static str, MethodRouter<Arc<Shared>>)> {
    vec![
        ("/v1/chat/completions", post(chat)),
        ("/v1/completions", post(completions)),
        ("/v1/models", get(models)),
        ("/v1/models/{*id}", get(model)),
        ("/tokenize", post(tokenize)),
        ("/detokenize", post(detokenize)),
        ("/health", get(health)),
        ("/metrics", get(metrics_text)),
        ("/openapi.json", get(openapi)),
        ("/", page::index()),
    ]
}

/// All routes behind the guard.
pub(crate) fn routes(shared: Arc<Shared>, guarded: Guard) -> Router {
    let routes = table().into_iter().chain(page::parts());
    routes
        .fold(Router::new(), |router, (path, method)| router.route(path, method))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(Arc::new(guarded), guard))
        .layer(from_fn_with_state(Arc::clone(&shared), count))
        .with_state(shared)
}

/// Counts responses.
async fn count(
    State(shared): State<Arc<Shared>>,
    path: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let response = next.run(request).await;
    let route = path.as_ref().map_or("none", MatchedPath::as_str);
    shared.metrics.response(route, response.status().as_u16());
    response
}

async fn metrics_text(State(shared): State<Arc<Shared>>) -> Result<Response, ApiError> {
    let worker = shared.app().ok().map(|app| &app.worker);
    let running = worker.map_or(0, |worker| worker.running());
    let waiting = worker.map_or(0, |worker| worker.queue.waiting());
    let cache = worker.map(|worker| worker.cache()).unwrap_or_default();
    let text = shared.metrics.text(running, waiting, &cache);
    let text = text.ok_or_else(|| ApiError::internal("the metrics could not be written"))?;
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
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
    let mut status = json!({
        "status": "ok",
        "model": app.model_id,
        "running": app.worker.running(),
        "waiting": app.worker.queue.waiting(),
        "sessions": app.sessions,
    });
    let Some(fault) = app.worker.fault() else { return json_response(StatusCode::OK, &status) };
    let failed = ApiError::engine_failed(&fault);
    status["status"] = "failed".into();
    status["error"] = failed.body()["error"].take();
    json_response(StatusCode::SERVICE_UNAVAILABLE, &status)
}

async fn not_found(method: Method, uri: Uri) -> ApiError {
    let message = format!(
        "there is no route {} {}; /openapi.json lists all",
        brief(method.as_str()),
        brief(uri.path())
    );
    ApiError::request(StatusCode::NOT_FOUND, "unknown_route", message)
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    // A route takes one of two methods.
    let other = match method {
        Method::GET | Method::HEAD => "POST",
        Method::POST => "GET",
        _ => "the method in the header `allow`",
    };
    let (path, method) = (brief(uri.path()), brief(method.as_str()));
    let message = format!("{path} does not answer {method}; use {other}");
    ApiError::request(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn the_openapi_document_has_the_routes_of_the_server() {
        let document: Value = serde_json::from_str(crate::openapi::DOCUMENT).unwrap();
        let described: Vec<String> =
            document["paths"].as_object().unwrap().keys().cloned().collect();
        let served: Vec<String> = table().iter().map(|(path, _)| path.replace("{*", "{")).collect();
        assert_eq!(described, served);
    }
}
