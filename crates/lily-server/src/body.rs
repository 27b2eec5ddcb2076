//! The body of a request, with its limits.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::StreamExt;
use tokio::sync::watch;

use crate::connection::Presence;
use crate::error::ApiError;
use crate::fields::brief;

/// What a body may take.
#[derive(Clone, Debug)]
pub(crate) struct BodyLimits {
    pub bytes: usize,
    /// From the end of the head to the end of the body.
    pub time: Duration,
}

/// Reads a body to its end, unless the server is asked to stop before.
pub(crate) async fn read_body(
    request: Request,
    limits: &BodyLimits,
    presence: &Presence,
    mut closing: watch::Receiver<bool>,
) -> Result<Bytes, ApiError> {
    check_encoding(request.headers())?;
    tokio::select! {
        biased;
        body = tokio::time::timeout(limits.time, read(request, limits.bytes)) => {
            let body = body.map_err(|_| ApiError::body_timeout(limits.time))??;
            presence.complete();
            Ok(body)
        }
        _ = closing.wait_for(|closing| *closing) => Err(ApiError::shutting_down()),
    }
}

/// Compressed bodies are not read: what they may grow to says no header.
fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let is_plain = |value: &[u8]| value.is_empty() || value.eq_ignore_ascii_case(b"identity");
    match headers.get_all(header::CONTENT_ENCODING).iter().find(|v| !is_plain(v.as_bytes())) {
        None => Ok(()),
        Some(encoding) => {
            let encoding = brief(&String::from_utf8_lossy(encoding.as_bytes()));
            let message = format!(
                "a body with `Content-Encoding: {encoding}` is not supported; send it as it is"
            );
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            Err(ApiError::request(status, "unsupported_encoding", message))
        }
    }
}

async fn read(request: Request, limit: usize) -> Result<Bytes, ApiError> {
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|n| n.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|n| n > limit as u64) {
        return Err(ApiError::body_too_large(limit));
    }
    let mut pieces = request.into_body().into_data_stream();
    let mut body = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| {
            let message = "the body could not be read to its end; send it again";
            ApiError::request(StatusCode::BAD_REQUEST, "incomplete_body", message)
        })?;
        if piece.len() > limit - body.len() {
            return Err(ApiError::body_too_large(limit));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body.into())
}
