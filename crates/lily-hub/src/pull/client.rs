//! HTTP: requests for files, redirects, and what refusals mean.

use std::borrow::Cow;
use std::fmt;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode, Uri, header};
use ureq::{Agent, Body};

use super::settings::{PullOptions, Token};
use crate::error::HubError;
use crate::id::ModelId;

/// A connection that is not there by then will not come.
pub(super) const CONNECT: Duration = Duration::from_secs(30);
/// Longest silence of a server.
pub(super) const SILENCE: Duration = Duration::from_secs(60);
/// Hops from the hub to the host that has the bytes; more are a circle.
const MAX_REDIRECTS: usize = 8;
/// Bytes of a refusal that are read to say what it says.
const MAX_SAYS: u64 = 4096;
/// How often Ctrl-C is looked for.
const POLL: Duration = Duration::from_millis(100);

/// Asks for files. Redirects are followed here and not by the library, because the token must not
/// travel along.
#[derive(Clone, Debug)]
pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    origin: Origin,
    token: Option<Token>,
}

/// Scheme, host and port of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

/// Why there is no answer, or none that can be used.
#[derive(Debug)]
pub(super) struct Failure {
    /// For people.
    pub(super) problem: String,
    /// Whether a second try could help.
    pub(super) passing: bool,
    /// Whether the server said something: then it is not the network's fault.
    answered: bool,
}

impl Failure {
    pub(super) fn of(error: ureq::Error) -> Self {
        use ureq::Error::{
            BodyExceedsLimit, ConnectionFailed, Io, LargeResponseHeader, Protocol, Timeout,
        };
        let passing = matches!(error, Io(_) | Timeout(_) | ConnectionFailed | Protocol(_));
        let answered = matches!(error, Protocol(_) | LargeResponseHeader(..) | BodyExceedsLimit(_));
        Self { problem: error.to_string(), passing, answered }
    }

    /// The server answers nonsense, and will again.
    pub(super) fn answer(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), passing: false, answered: true }
    }

    /// The connection ended in the middle of an answer.
    pub(super) fn broken(error: impl Into<ureq::Error>) -> Self {
        Self { passing: true, ..Self::of(error.into()) }
    }

    /// The error for whoever wanted `what` from `host`.
    pub(super) fn explain(self, host: &str, what: &str) -> HubError {
        let (host, what, problem) = (host.into(), what.into(), self.problem);
        match self.answered {
            true => HubError::Nonsense { host, what, problem },
            false => HubError::Network { host, what, problem },
        }
    }
}

/// An answer that is a refusal.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: u16,
    /// The hub's own word for it, in `X-Error-Code`.
    code: String,
    /// What it says, in one line.
    says: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}", self.status)?;
        if self.says.is_empty() { Ok(()) } else { write!(f, ": {}", self.says) }
    }
}

impl Client {
    /// # Errors
    /// The endpoint is no URL of a server.
    pub(super) fn new(options: &PullOptions) -> Result<Self, HubError> {
        let endpoint = options.endpoint.trim_end_matches('/').to_owned();
        let Some(origin) = Origin::of(&endpoint) else {
            let problem = format!("is `{endpoint}`, expected a URL such as https://huggingface.co");
            return Err(HubError::Setting { name: "HF_ENDPOINT", problem });
        };
        let config = Agent::config_builder()
            // Nothing waits for ever; how long a whole transfer takes is nobody's business.
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .redirect_auth_headers(RedirectAuthHeaders::Never)
            .http_status_as_error(false)
            .user_agent(concat!("lily/", env!("CARGO_PKG_VERSION")));
        Ok(Self { agent: config.build().into(), endpoint, origin, token: options.token.clone() })
    }

    /// Where the hub has a file of a commit.
    pub(super) fn file_url(&self, id: &ModelId, commit: &str, file: &str) -> String {
        format!("{}/{}/resolve/{commit}/{file}", self.endpoint, id.name())
    }

    /// The hub, without a slash at its end.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The hub's host.
    pub(super) fn host(&self) -> &str {
        &self.origin.host
    }

    /// Asks for a file, from byte `from` on.
    pub(super) fn get(&self, url: &str, from: u64) -> Result<Response<Body>, Failure> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            // Compressed bytes cannot be continued.
            let mut request = self.agent.get(&url).header(header::ACCEPT_ENCODING, "identity");
            if from > 0 {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            let origin = Origin::of(&url);
            if let Some(token) = &self.token
                && origin.as_ref() == Some(&self.origin)
            {
                request = request.header(header::AUTHORIZATION, bearer(token));
            }
            let response = request.call().map_err(Failure::of)?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let location = response.headers().get(header::LOCATION);
            let location = location.and_then(|location| location.to_str().ok());
            let next = location.and_then(|location| join(&url, location));
            let next = next.ok_or_else(|| Failure::answer("it redirects to no URL"))?;
            if url.starts_with("https://") && !next.starts_with("https://") {
                return Err(Failure::answer("it redirects from https to http"));
            }
            url = next;
        }
        Err(Failure::answer("it redirects in a circle"))
    }
}

fn bearer(token: &Token) -> String {
    format!("Bearer {}", token.secret())
}

impl Origin {
    fn of(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let scheme = uri.scheme_str()?;
        let default = match scheme {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        let host = uri.host().filter(|host| !host.is_empty())?.to_ascii_lowercase();
        Some(Self { scheme: scheme.into(), host, port: uri.port_u16().unwrap_or(default) })
    }
}

/// The host of a URL, for people.
pub(super) fn host(url: &str) -> String {
    Origin::of(url).map_or_else(|| url.to_owned(), |origin| origin.host)
}

/// The target of a redirect.
fn join(url: &str, location: &str) -> Option<String> {
    if Origin::of(location).is_some() {
        return Some(location.into());
    }
    let (scheme, rest) = url.split_once("://")?;
    if let Some(other) = location.strip_prefix("//") {
        return Some(format!("{scheme}://{other}"));
    }
    let authority = rest.split(['/', '?', '#']).next()?;
    location.starts_with('/').then(|| format!("{scheme}://{authority}{location}"))
}

impl Refusal {
    /// The refusal in an answer; `None` if it is none.
    pub(super) fn of(response: &mut Response<Body>) -> Option<Self> {
        let status = response.status().as_u16();
        if response.status().is_success() {
            return None;
        }
        let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok());
        let code = code.unwrap_or_default().into();
        let mut body = Vec::new();
        // As far as it comes: the status says enough.
        let _ = response.body_mut().as_reader().take(MAX_SAYS).read_to_end(&mut body);
        Some(Self { status, code, says: said(&body) })
    }

    /// Whether the same request may succeed later.
    pub(super) fn passes(&self) -> bool {
        self.status == StatusCode::TOO_MANY_REQUESTS.as_u16() || self.status >= 500
    }

    /// What the refusal means for the request of a model's files.
    pub(super) fn explain(
        &self,
        id: &ModelId,
        endpoint: &str,
        token: bool,
        what: &str,
    ) -> HubError {
        let (name, endpoint) = (id.name().to_owned(), endpoint.to_owned());
        match (self.code.as_str(), self.status) {
            ("GatedRepo", _) => HubError::Gated { name, endpoint },
            ("RevisionNotFound", _) => {
                HubError::MissingRevision { name, revision: id.revision().into(), endpoint }
            }
            ("RepoNotFound", _) | (_, 404) => HubError::MissingRepo { name, endpoint },
            (_, status @ (401 | 403)) if token => HubError::Token { name, endpoint, status },
            // Without a token the hub does not tell a private repository from none.
            (_, 401) => HubError::MissingRepo { name, endpoint },
            (_, 403) => HubError::Gated { name, endpoint },
            _ => HubError::Status {
                host: host(&endpoint),
                what: what.into(),
                answer: self.to_string(),
            },
        }
    }
}

/// What the body of an answer says, in one line: the hub's `error`, or how the text begins.
pub(super) fn said(body: &[u8]) -> String {
    let json: Option<Value> = serde_json::from_slice(body).ok();
    let error = json.as_ref().and_then(|json| json.get("error")?.as_str());
    let text = error.map_or_else(|| String::from_utf8_lossy(body), Cow::from);
    let words: Vec<_> = text.split(|c: char| c.is_whitespace() || c.is_control()).collect();
    brief(&words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" "))
}

/// The beginning of a text of the hub, for a message.
pub(super) fn brief(text: &str) -> String {
    const MOST: usize = 100;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into(),
    }
}

/// Runs work on a thread of its own, because a blocked read cannot be told to stop. `None` if
/// `cancel` was set first; the thread then ends by itself, at the latest with its timeout.
pub(super) fn in_background<T: Send + 'static>(
    cancel: &AtomicBool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::spawn(move || {
        // Nobody may be waiting any more.
        let _ = sender.send(work());
    });
    receive(&receiver, cancel).ok()
}

/// Why nothing was received.
pub(super) enum Silence {
    /// Somebody asked to stop.
    Cancelled,
    /// The other side is gone.
    Ended,
}

/// Waits for the next message, or for `cancel`.
pub(super) fn receive<T>(receiver: &mpsc::Receiver<T>, cancel: &AtomicBool) -> Result<T, Silence> {
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(Silence::Cancelled);
        }
        match receiver.recv_timeout(POLL) {
            Ok(message) => return Ok(message),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(Silence::Ended),
        }
    }
}

/// Waits, unless `cancel` is set. Says whether it waited to the end.
pub(super) fn pause(time: Duration, cancel: &AtomicBool) -> bool {
    let (_sender, receiver) = mpsc::channel::<()>();
    let end = std::time::Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(std::time::Instant::now());
        if cancel.load(Ordering::Relaxed) {
            return false;
        }
        if left.is_zero() {
            return true;
        }
        let _ = receiver.recv_timeout(left.min(POLL));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_joined_with_where_they_come_from() {
        let url = "https://hub.example:8443/a/b?x#y";
        assert_eq!(join(url, "https://cdn.example/z").as_deref(), Some("https://cdn.example/z"));
        assert_eq!(join(url, "/z?w").as_deref(), Some("https://hub.example:8443/z?w"));
        assert_eq!(join(url, "//cdn.example/z").as_deref(), Some("https://cdn.example/z"));
        assert_eq!(join(url, "z"), None);
        assert_eq!(join(url, "ftp://cdn.example/z"), None);
    }

    #[test]
    fn origins_differ_by_scheme_host_and_port() {
        let of = |url| Origin::of(url);
        assert_eq!(of("https://Hub.example/a"), of("https://hub.example:443"));
        assert_ne!(of("https://hub.example"), of("http://hub.example"));
        assert_ne!(of("https://hub.example"), of("https://hub.example:8443"));
        assert_ne!(of("https://hub.example"), of("https://hub.example.evil"));
        // What stands before the @ is a user's name, not the host.
        assert_ne!(of("https://hub.example"), of("https://hub.example@evil.example"));
        assert_eq!(of("hub.example"), None);
        assert_eq!(of("file:///etc"), None);
    }

    #[test]
    fn what_a_server_says_becomes_one_short_line() {
        assert_eq!(said(br#"{"error": "Repository is\n disabled"}"#), "Repository is disabled");
        assert_eq!(said(b"<html>\r\n\t<b>\x1b[31mBusy</b>"), "<html> <b> [31mBusy</b>");
        assert_eq!(said(b""), "");
        assert_eq!(said(&[b'x'; 4096]).chars().count(), 101);
    }

    #[test]
    fn refusals_are_told_apart_by_code_status_and_token() {
        let id: ModelId = "a/b@v1".parse().unwrap();
        let explain = |status, code: &str, token| {
            let refusal = Refusal { status, code: code.into(), says: "so sorry".into() };
            refusal.explain(&id, "https://hub.example", token, "x").to_string()
        };
        assert!(
            explain(401, "GatedRepo", false)
                .contains("accept its licence at https://hub.example/a/b")
        );
        assert!(explain(403, "", false).contains("HF_TOKEN"));
        assert!(explain(401, "", false).contains("no repository a/b"));
        assert!(explain(401, "", true).contains("refuses the token"));
        assert!(explain(404, "RepoNotFound", true).contains("no repository a/b"));
        assert!(explain(404, "RevisionNotFound", false).contains("no revision `v1`"));
        assert!(explain(503, "", false).contains("status 503: so sorry"));
    }
}
