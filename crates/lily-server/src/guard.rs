//! Who may ask: host names, origins of web pages, and the key.
//!
//! A web page must not talk to a server on its reader's machine unless that was allowed by name.
//! Browsers say where a page comes from (`Origin`), and which name led here (`Host`): a foreign
//! name that was made to point at this machine is refused too.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::{ApiError, JSON};
use crate::sse::IGNORED;

/// What is allowed.
#[derive(Debug)]
pub(crate) struct Guard {
    pub api_key: Option<String>,
    /// Host names besides loopback and plain addresses.
    pub hosts: Vec<String>,
    /// Origins of web pages; `*` allows all.
    pub origins: Vec<String>,
}

/// Refuses what is not allowed, and answers preflights.
pub(crate) async fn guard(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    if let Err(error) = guard.check_host(request.headers()).and(guard.check_origin(origin.as_ref()))
    {
        return error.into_response();
    }
    let mut response = if is_preflight(&request) {
        preflight(request.headers())
    } else if request.uri().path() != "/health" && !guard.has_key(request.headers()) {
        ApiError::unauthorized().into_response()
    } else {
        in_shape(next.run(request).await)
    };
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, IGNORED.into());
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
    }
    response
}

/// Errors that a library below has answered get the shape of all others.
fn in_shape(response: Response) -> Response {
    let status = response.status();
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == JSON);
    if is_json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let mut shaped = ApiError::of_status(status).into_response();
    if let Some(allow) = response.headers().get(header::ALLOW) {
        shaped.headers_mut().insert(header::ALLOW, allow.clone());
    }
    shaped
}

impl Guard {
    fn check_host(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        // Every browser sends it.
        let Some(value) = headers.get(header::HOST) else { return Ok(()) };
        let host = value.to_str().map(host_name).unwrap_or_default();
        // A page cannot be served under an address that it does not have.
        let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        let allowed = |name: &String| name.eq_ignore_ascii_case(host);
        if is_address || host.eq_ignore_ascii_case("localhost") || self.hosts.iter().any(allowed) {
            return Ok(());
        }
        let message = format!(
            "the host name `{host}` is not served here; use localhost or an address, or start the \
             server with --allow-host {host}"
        );
        Err(ApiError::request(StatusCode::FORBIDDEN, "host_not_allowed", message))
    }

    fn check_origin(&self, origin: Option<&HeaderValue>) -> Result<(), ApiError> {
        let Some(origin) = origin else { return Ok(()) };
        let origin = origin.to_str().unwrap_or_default();
        let allowed = |name: &String| name == "*" || name.eq_ignore_ascii_case(origin);
        if self.origins.iter().any(allowed) {
            return Ok(());
        }
        let message = format!(
            "web pages from `{origin}` may not use this server; start it with --allow-origin \
             {origin} to allow them"
        );
        Err(ApiError::request(StatusCode::FORBIDDEN, "origin_not_allowed", message))
    }

    fn has_key(&self, headers: &HeaderMap) -> bool {
        let Some(key) = &self.api_key else { return true };
        let value = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let Some((scheme, given)) = value.and_then(|value| value.split_at_checked(7)) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(b"Bearer ") && same(given, key.as_bytes())
    }
}

/// Compares in a time that depends on the given length only.
fn same(given: &[u8], key: &[u8]) -> bool {
    let mut difference = given.len() ^ key.len();
    for (index, byte) in given.iter().enumerate() {
        let expected = key.get(index % key.len().max(1)).copied().unwrap_or(0);
        difference |= usize::from(byte ^ expected);
    }
    difference == 0
}

/// A `Host` without its port.
fn host_name(value: &str) -> &str {
    match value.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => value,
    }
}

fn is_preflight(request: &Request) -> bool {
    let asks = header::ACCESS_CONTROL_REQUEST_METHOD;
    request.method() == Method::OPTIONS && request.headers().contains_key(asks)
}

/// The origin is checked already.
fn preflight(asked: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value| headers.insert(name, value);
    set(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    set(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    if let Some(names) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        set(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> Guard {
        Guard {
            api_key: Some("secret".into()),
            hosts: vec!["box.lan".into()],
            origins: vec!["http://app.local".into()],
        }
    }

    fn headers(name: HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn hosts_are_loopback_addresses_or_allowed_by_name() {
        for host in ["localhost:8080", "127.0.0.1", "[::1]:80", "[::1]", "192.168.0.4:1", "BOX.lan"]
        {
            assert!(guard().check_host(&headers(header::HOST, host)).is_ok(), "{host}");
        }
        for host in ["evil.example:8080", "localhost.evil.example", "", "127.0.0.1.evil.example"] {
            assert!(guard().check_host(&headers(header::HOST, host)).is_err(), "{host}");
        }
    }

    #[test]
    fn origins_are_refused_unless_allowed() {
        let check = |origin| guard().check_origin(Some(&HeaderValue::from_static(origin)));
        assert!(check("http://app.local").is_ok());
        for origin in ["https://evil.example", "null", "http://app.local.evil.example"] {
            assert!(check(origin).is_err(), "{origin}");
        }
        assert!(guard().check_origin(None).is_ok());
    }

    #[test]
    fn only_the_whole_key_opens() {
        let has = |value| guard().has_key(&headers(header::AUTHORIZATION, value));
        assert!(has("Bearer secret"));
        assert!(has("bearer secret"));
        for value in ["Bearer secre", "Bearer secrets", "Bearer ", "secret", "Basic secret", ""] {
            assert!(!has(value), "{value}");
        }
        assert!(!guard().has_key(&HeaderMap::new()));
    }
}
