//! Who may ask: host names, origins of web pages, and the key.
//!
//! A web page must not talk to a server on its reader's machine unless that was allowed by name, or it
//! is the server's own page.
//! Browsers say where a page comes from (`Origin`), and which name led here (`Host`): a foreign
//! name that was made to point at this machine is refused too.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use subtle::ConstantTimeEq;

use crate::error::{ApiError, JSON};
use crate::fields::brief;
use crate::page::is_page;
use crate::respond::IGNORED;
use crate::settings::Secret;

/// What is allowed.
pub(crate) struct Guard {
    pub api_key: Option<Secret>,
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
    let host = guard.check_host(request.headers(), request.uri());
    if let Err(error) = host.and(guard.check_origin(origin.as_ref(), request.headers())) {
        return error.into_response();
    }
    let path = request.uri().path();
    let is_open = path == "/health" || is_page(path);
    let mut response = if is_preflight(&request) {
        preflight(request.headers())
    } else if !is_open && !guard.has_key(request.headers()) {
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
    /// Every client sends one host name. Two could mean one thing to a proxy and another one here.
    fn check_host(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(value), None) = (hosts.next(), hosts.next()) else {
            let message = "expected the header `Host` once, found it missing or repeated; send it \
                           once";
            return Err(ApiError::request(StatusCode::BAD_REQUEST, "invalid_host", message));
        };
        let value = value.to_str().unwrap_or_default();
        // A target with a name of its own decides before the header.
        let target = uri.authority().map(|authority| authority.as_str());
        self.check_host_name(host_name(value))?;
        target.map_or(Ok(()), |target| self.check_host_name(host_name(target)))
    }

    fn check_host_name(&self, host: &str) -> Result<(), ApiError> {
        // A page cannot be served under an address that it does not have.
        let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        let allowed = |name: &String| name.eq_ignore_ascii_case(host);
        if is_address || host.eq_ignore_ascii_case("localhost") || self.hosts.iter().any(allowed) {
            return Ok(());
        }
        let host = brief(host);
        let message = format!(
            "the host name `{host}` is not served here; use localhost or an address, or start the \
             server with --allow-host {host}"
        );
        Err(ApiError::request(StatusCode::FORBIDDEN, "host_not_allowed", message))
    }

    /// The host has been checked: a page with the same one came from here, or through the proxy in
    /// front, which may have ended TLS.
    fn check_origin(
        &self,
        origin: Option<&HeaderValue>,
        headers: &HeaderMap,
    ) -> Result<(), ApiError> {
        let Some(origin) = origin else { return Ok(()) };
        let origin = origin.to_str().unwrap_or_default();
        let own = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let from = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        let is_own = from.zip(own).is_some_and(|(from, own)| from.eq_ignore_ascii_case(own));
        let allowed = |name: &String| name == "*" || name.eq_ignore_ascii_case(origin);
        if is_own || self.origins.iter().any(allowed) {
            return Ok(());
        }
        let origin = brief(origin);
        let message = match origin.as_str() {
            // A file, or a frame that may not say: such a page has no name that could be allowed.
            "null" => "web pages without an origin of their own, such as files, may not use this \
                       server; serve the page from an address, and start the server with \
                       --allow-origin and that address"
                .to_owned(),
            origin => format!(
                "web pages from `{origin}` may not use this server; start it with --allow-origin \
                 {origin} to allow them"
            ),
        };
        Err(ApiError::request(StatusCode::FORBIDDEN, "origin_not_allowed", message))
    }

    fn has_key(&self, headers: &HeaderMap) -> bool {
        let Some(key) = &self.api_key else { return true };
        let value = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let Some((scheme, given)) = value.and_then(|value| value.split_at_checked(7)) else {
            return false;
        };
        // In a time that depends on the lengths only.
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(given.ct_eq(key.expose().as_bytes()))
    }
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
            api_key: Some(Secret::new("secret")),
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
            let headers = headers(header::HOST, host);
            assert!(guard().check_host(&headers, &Uri::from_static("/")).is_ok(), "{host}");
        }
        for host in ["evil.example:8080", "localhost.evil.example", "", "127.0.0.1.evil.example"] {
            let headers = headers(header::HOST, host);
            assert!(guard().check_host(&headers, &Uri::from_static("/")).is_err(), "{host}");
        }
    }

    #[test]
    fn a_host_is_given_once_and_agrees_with_the_target() {
        let root = Uri::from_static("/");
        assert!(guard().check_host(&HeaderMap::new(), &root).is_err());
        let mut two = headers(header::HOST, "localhost");
        let foreign = Uri::from_static("http://evil.example/v1/models");
        assert!(guard().check_host(&two, &foreign).is_err());
        assert!(guard().check_host(&two, &Uri::from_static("http://localhost:1/")).is_ok());
        two.append(header::HOST, HeaderValue::from_static("localhost"));
        assert!(guard().check_host(&two, &root).is_err());
    }

    #[test]
    fn origins_are_refused_unless_allowed() {
        let host = headers(header::HOST, "127.0.0.1:8080");
        let check = |origin| guard().check_origin(Some(&HeaderValue::from_static(origin)), &host);
        assert!(check("http://app.local").is_ok());
        for origin in ["https://evil.example", "null", "http://app.local.evil.example"] {
            assert!(check(origin).is_err(), "{origin}");
        }
        assert!(guard().check_origin(None, &host).is_ok());
    }

    #[test]
    fn r85_a_page_is_told_what_its_owner_can_do() {
        let advice = |origin| {
            let origin = HeaderValue::from_static(origin);
            let refused = guard().check_origin(Some(&origin), &HeaderMap::new()).unwrap_err();
            refused.body()["error"]["message"].as_str().unwrap().to_owned()
        };
        assert!(advice("http://a.example").contains("--allow-origin http://a.example"));
        // Such a page has no name that could be allowed.
        let null = advice("null");
        assert!(
            !null.contains("--allow-origin null") && null.contains("from an address"),
            "{null}"
        );
    }

    #[test]
    fn the_own_page_may_ask_and_no_other_page_of_the_machine() {
        let host = headers(header::HOST, "127.0.0.1:8080");
        let check = |origin| guard().check_origin(Some(&HeaderValue::from_static(origin)), &host);
        assert!(check("http://127.0.0.1:8080").is_ok());
        // Behind a proxy that ends TLS.
        assert!(check("https://127.0.0.1:8080").is_ok());
        for origin in [
            "http://127.0.0.1",
            "http://127.0.0.1:3000",
            "http://localhost:8080",
            "127.0.0.1:8080",
            "file://127.0.0.1:8080",
            "http://127.0.0.1:8080.evil.example",
            "http://",
            "",
        ] {
            assert!(check(origin).is_err(), "{origin}");
        }
        let origin = HeaderValue::from_static("http://127.0.0.1:8080");
        assert!(guard().check_origin(Some(&origin), &HeaderMap::new()).is_err());
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
