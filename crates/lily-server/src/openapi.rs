//! `GET /openapi.json`: the routes, for programs.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;

use crate::error::JSON;

/// The document. Tests hold it against routes and fields.
pub(crate) const DOCUMENT: &str = include_str!("openapi.json");

/// The document as it is.
pub(crate) async fn openapi() -> Response {
    let mut response = Response::new(Body::from(DOCUMENT));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}
