//! How a server behaves.

use std::fmt;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::connection::Limits;
use crate::guard::Guard;

/// A text that must not be seen: it prints as stars.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Keeps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, to be compared with.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Key that clients must send as a bearer token; `/health` needs none.
    pub api_key: Option<Secret>,
    /// Names that clients may reach the server by, besides `localhost` and plain addresses.
    pub hosts: Vec<String>,
    /// Origins of web pages that may use the server, such as `https://app.example:8443`; `*` allows
    /// all.
    pub origins: Vec<String>,
    /// Whether fields that are unknown or not supported are left out and listed instead of refused,
    /// where a request does not ask for the one or the other.
    pub lenient: bool,
    /// Most time of a reply, waiting counted; `None` for as long as it takes.
    pub request_timeout: Option<Duration>,
    /// Requests that may wait.
    pub queue: usize,
    /// Longest time that a chunk of a prompt should take while other requests generate.
    pub pause: Duration,
    /// Largest request body, in bytes.
    pub body_limit: usize,
    /// Connections at one time; further ones wait to be accepted.
    pub connections: usize,
    /// Time for the head of a request, from its first byte.
    pub head_timeout: Duration,
    /// Time for the body of a request, from the end of its head.
    pub body_timeout: Duration,
    /// Time in which a connection may wait for its next request.
    pub idle_timeout: Duration,
    /// Longest time in which a client takes nothing of its reply.
    pub write_timeout: Duration,
    /// Longest silence of a reply; then a comment or a line end is sent.
    pub heartbeat: Duration,
    /// Time that the running requests have to finish at shutdown.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            api_key: None,
            hosts: Vec::new(),
            origins: Vec::new(),
            lenient: false,
            request_timeout: None,
            queue: 64,
            // A reader hardly notices.
            pause: Duration::from_millis(250),
            // A context of 262,144 tokens is about 1 MB of text; escapes may take six bytes each.
            body_limit: 32 << 20,
            // Some systems let a program open 256 files.
            connections: 200,
            // One packet in practice.
            head_timeout: Duration::from_secs(10),
            // The largest body in a minute is 4.5 Mbit/s.
            body_timeout: Duration::from_secs(60),
            // Longer than client libraries keep a connection for reuse.
            idle_timeout: Duration::from_secs(75),
            // A person may have stopped the client for a moment.
            write_timeout: Duration::from_secs(120),
            // Clients are promised 5 s; timers are late at times.
            heartbeat: Duration::from_secs(4),
            grace: Duration::from_secs(5),
        }
    }
}

/// A setting that has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The model has no name that a request could give.
    #[error(
        "expected a name for the model without spaces around it, found {0:?}; give another one"
    )]
    ModelId(String),
    /// The key is empty or cannot stand in a header.
    #[error(
        "expected an API key of visible ASCII characters, found none or others; give another one, \
         or none to serve without a key"
    )]
    ApiKey,
    /// Not an origin as browsers send it.
    #[error(
        "expected an origin such as http://localhost:3000 or *, found {0:?}; give scheme, host and \
         port as the address bar shows them, without a path"
    )]
    Origin(String),
    /// Not a host name.
    #[error(
        "expected a host name such as box.lan, found {0:?}; give it without scheme, port and path"
    )]
    Host(String),
}

/// Refuses a name of a model that no request can give, or that no reader can see.
///
/// # Errors
/// [`SettingsError::ModelId`].
pub fn check_model_id(id: &str) -> Result<(), SettingsError> {
    if id.is_empty() || id.trim() != id || id.chars().any(char::is_control) {
        return Err(SettingsError::ModelId(id.to_owned()));
    }
    Ok(())
}

impl Settings {
    /// Refuses settings that could never match a request.
    ///
    /// # Errors
    /// A key, an origin or a host that no request can have.
    pub fn check(&self) -> Result<(), SettingsError> {
        let is_visible =
            |key: &Secret| !key.0.is_empty() && key.0.bytes().all(|b| b.is_ascii_graphic());
        if self.api_key.as_ref().is_some_and(|key| !is_visible(key)) {
            return Err(SettingsError::ApiKey);
        }
        if let Some(origin) = self.origins.iter().find(|origin| !is_origin(origin)) {
            return Err(SettingsError::Origin(origin.clone()));
        }
        match self.hosts.iter().find(|host| !is_host(host)) {
            Some(host) => Err(SettingsError::Host(host.clone())),
            None => Ok(()),
        }
    }

    pub(crate) fn guard(&self) -> Guard {
        Guard {
            api_key: self.api_key.clone(),
            hosts: self.hosts.clone(),
            origins: self.origins.clone(),
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            connections: self.connections.clamp(1, Semaphore::MAX_PERMITS),
            head: self.head_timeout,
            idle: self.idle_timeout,
            write: self.write_timeout,
        }
    }
}

/// `*`, or scheme, host, and a port where it is not the scheme's own.
fn is_origin(origin: &str) -> bool {
    if origin == "*" {
        return true;
    }
    let Some((scheme, rest)) = origin.split_once("://") else { return false };
    // Browser extensions have schemes of their own.
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (rest, None),
    };
    is_scheme && is_host(host) && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// A name or an address; an IPv6 address may stand in brackets.
fn is_host(host: &str) -> bool {
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if inside.parse::<std::net::IpAddr>().is_ok() {
        return true;
    }
    // A name that ends in a number is an address with a slip in it.
    let last = host.strip_suffix('.').unwrap_or(host).rsplit('.').next().unwrap_or_default();
    !last.is_empty()
        && !last.bytes().all(|b| b.is_ascii_digit())
        && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_no_request_can_match_are_refused() {
        for origin in [
            "*",
            "http://app.local",
            "https://a.example:8443",
            "http://[::1]:3000",
            "http://127.0.0.1",
            "chrome-extension://abcdef",
        ] {
            let settings = Settings { origins: vec![origin.into()], ..Settings::default() };
            assert_eq!(settings.check(), Ok(()), "{origin}");
        }
        for origin in [
            "nonsense",
            "",
            "http://",
            "http://a/",
            "a.example",
            "http://a b",
            "http://a:port",
            "http://a:99999",
            "null",
            "http://a.example/path",
            "://a",
            "**",
        ] {
            let settings = Settings { origins: vec![origin.into()], ..Settings::default() };
            assert_eq!(settings.check(), Err(SettingsError::Origin(origin.into())), "{origin}");
        }
        for host in ["box.lan:80", "http://box", "", "a b", "*", "127.0.0.256", "10", "."] {
            let settings = Settings { hosts: vec![host.into()], ..Settings::default() };
            assert_eq!(settings.check(), Err(SettingsError::Host(host.into())), "{host}");
        }
        for host in
            ["box.lan", "box.lan.", "127.0.0.1", "::1", "[::1]", "0.0.0.0", "my_box", "box2"]
        {
            let settings = Settings { hosts: vec![host.into()], ..Settings::default() };
            assert_eq!(settings.check(), Ok(()), "{host}");
        }
        for key in ["", "a b", "gr\u{fc}n", "a\n"] {
            let settings = Settings { api_key: Some(Secret::new(key)), ..Settings::default() };
            assert_eq!(settings.check(), Err(SettingsError::ApiKey), "{key:?}");
            assert!(key.is_empty() || !format!("{settings:?}").contains(key));
        }
        for id in ["", " ", "a ", "a\nb"] {
            assert_eq!(check_model_id(id), Err(SettingsError::ModelId(id.into())));
        }
        assert_eq!(check_model_id("someone/Model-3.6 (4 bit)"), Ok(()));
    }
}
