//! Errors in the shape of the OpenAI API.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lily_chat::ChatError;
use lily_model::engine::EngineError;
use lily_model::sampling::SamplingError;
use lily_text::TextError;
use serde_json::{Value, json};

use crate::fields::brief;

/// Type of every body that is not a stream of events.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// What a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
    /// Seconds after which the request may be sent again.
    retry_after: Option<u32>,
}

impl ApiError {
    /// The request is wrong; `param` is the path of the field at fault.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message);
        Self { param: Some(param.into()), ..error }
    }

    /// The request as a whole is wrong.
    pub fn request(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::new(status, "invalid_request_error", message) }
    }

    /// The prompt leaves no room in the context. The words are those that agents look for.
    pub fn context_length(param: &str, prompt: usize, context: usize) -> Self {
        let message = format!(
            "This model's maximum context length is {context} tokens, and the prompt is too long: \
             {prompt} tokens >= {context} maximum, which leaves none for an answer; shorten it, or \
             start the server with a larger --ctx"
        );
        Self { code: Some("context_length_exceeded"), ..Self::field(param, message) }
    }

    /// No such model is served.
    pub fn model_not_found(asked: &str, served: &str) -> Self {
        let message =
            format!("the model `{}` is not served here; ask for `{served}`", brief(asked));
        let error = Self::request(StatusCode::NOT_FOUND, "model_not_found", message);
        Self { param: Some("model".into()), ..error }
    }

    /// The key is missing or wrong.
    pub fn unauthorized() -> Self {
        let message = "expected the server's key in the header `Authorization: Bearer KEY`";
        let status = StatusCode::UNAUTHORIZED;
        Self { kind: "authentication_error", ..Self::request(status, "invalid_api_key", message) }
    }

    /// A reply of so many choices never has room.
    pub fn too_many_choices(asked: usize, most: usize) -> Self {
        let message = format!(
            "expected a request for {most} choices at most, which is what can run and wait here at \
             once, found {asked}; ask for fewer, or start the server with a larger --queue"
        );
        Self::field("n", message)
    }

    /// Too many requests wait; in `seconds` there may be room.
    pub fn queue_full(limit: usize, seconds: u32) -> Self {
        let message = format!(
            "there is no room for this request beside those that run and wait (--queue {limit}); \
             send it again in {seconds} s or later"
        );
        let error = Self::server(StatusCode::TOO_MANY_REQUESTS, "queue_full", message);
        Self { kind: "rate_limit_error", retry_after: Some(seconds), ..error }
    }

    /// Nothing can be run any more.
    pub fn engine_failed(reason: &str) -> Self {
        let message = format!(
            "the model cannot be run: {reason}; send the request again to have it tried once more, \
             or start the server anew"
        );
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "engine_failed", message)
    }

    /// The model is not there yet.
    pub fn loading() -> Self {
        let message = "the model is still being loaded; send the request again in a moment";
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "model_loading", message)
    }

    /// The body has more bytes than could be used.
    pub fn body_too_large(limit: usize) -> Self {
        let message = format!("the body is larger than the {limit} bytes allowed here; send less");
        Self::request(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    }

    /// The body takes too long.
    pub fn body_timeout(limit: Duration) -> Self {
        let message = format!(
            "the body did not come to its end within {:.0} s; send it again",
            limit.as_secs_f64()
        );
        Self::request(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
    }

    /// The reply takes too long.
    pub fn request_timeout(limit: Duration) -> Self {
        let message = format!(
            "the request did not end within the {} s that it had; ask for less, or start the server \
             with a longer --request-timeout",
            limit.as_secs_f64()
        );
        Self::server(StatusCode::GATEWAY_TIMEOUT, "request_timeout", message)
    }

    /// A format takes too long.
    pub fn format_too_long(param: &str, limit: Duration) -> Self {
        let message =
            format!("`{param}` was not ready within {} s; ask for a simpler one", limit.as_secs());
        Self { code: Some("format_timeout"), ..Self::field(param, message) }
    }

    /// The formats of others take too long.
    pub fn formats_busy(waited: Duration) -> Self {
        let message = format!(
            "the formats of other requests took longer than {} s; send the request again in a moment",
            waited.as_secs()
        );
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "formats_busy", message)
    }

    /// The server is going away.
    pub fn shutting_down() -> Self {
        let message = "the server is shutting down; send the request again once it is back";
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message)
    }

    /// A fault on this side.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::server(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// A tokenizer or template that refuses or fails; `param` names the field with the text.
    pub fn text(param: &str, error: &TextError) -> Self {
        match error {
            TextError::Request { field, .. } if field.starts_with("messages[") => {
                Self::field(field.clone(), error.to_string())
            }
            _ if error.is_request_error() => Self::field(param, error.to_string()),
            _ => Self::internal(error.to_string()),
        }
    }

    /// An engine that refuses or fails.
    pub fn chat(error: &ChatError) -> Self {
        match error {
            ChatError::Engine(EngineError::Sampling(
                cause @ (SamplingError::Parameter { .. } | SamplingError::NothingLeft { .. }),
            )) => {
                let message = cause.to_string();
                Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
            }
            ChatError::Engine(EngineError::Constraint(cause)) => {
                Self::request(StatusCode::BAD_REQUEST, "format_failed", cause.to_string())
            }
            ChatError::Text(text) => Self::text("stop", text),
            _ => Self::internal(error.to_string()),
        }
    }

    /// Whatever a library below says in words of its own.
    pub fn of_status(status: StatusCode) -> Self {
        let reason = status.canonical_reason().unwrap_or("no reason given");
        let message =
            format!("the request was refused: {reason}; /openapi.json has what is accepted");
        match status.is_server_error() {
            true => Self { status, ..Self::internal(message) },
            false => Self::request(status, "bad_request", message),
        }
    }

    /// `{"error": {…}}`.
    pub fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        } })
    }

    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        // What is not there may be there in a moment.
        let retry_after = (status == StatusCode::SERVICE_UNAVAILABLE).then_some(1);
        Self { status, kind, code: None, param: None, message: message.into(), retry_after }
    }

    fn server(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::new(status, "server_error", message) }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.body());
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// A JSON body.
pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}
