//! What a download is told, by its caller or by the environment.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use ureq::{Proxy, ProxyProtocol};

use crate::cache::{self, Cache};
use crate::error::HubError;

const ENDPOINT: &str = "https://huggingface.co";

/// A secret that opens private and gated repositories. It cannot be printed.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// A token.
    ///
    /// # Errors
    /// It has characters that cannot stand in a request: a slip when it was copied.
    pub fn new(text: &str) -> Result<Self, HubError> {
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            let problem = "is no token, need one line of letters, digits and signs";
            return Err(HubError::Setting { name: "HF_TOKEN", problem: problem.into() });
        }
        Ok(Self(text.into()))
    }

    pub(super) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// How to download.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// The cache.
    pub cache: Cache,
    /// The hub, such as `https://huggingface.co`.
    pub endpoint: String,
    /// For private and gated repositories. It is sent to the endpoint and to no other host.
    pub token: Option<Token>,
    /// Refuse to use the network.
    pub offline: bool,
    /// Compute the hashes of files in the cache too, not only those of new ones.
    pub check: bool,
    /// Tries to go on after a transfer that broke off; one that brought a lot does not count.
    pub retries: u32,
    /// Wait before the first such try; doubled each time.
    pub retry_wait: Duration,
    /// Bytes free on the disk of a folder.
    pub free_space: fn(&Path) -> io::Result<u64>,
}

impl PullOptions {
    /// Downloads from the public hub into this cache.
    pub fn new(cache: Cache) -> Self {
        Self {
            cache,
            endpoint: ENDPOINT.into(),
            token: None,
            offline: false,
            check: false,
            retries: 5,
            retry_wait: Duration::from_secs(1),
            free_space: |folder| fs4::available_space(folder),
        }
    }

    /// What the environment says: `HF_HUB_CACHE`, `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`. A proxy is used as its variables say, and they are checked
    /// here.
    ///
    /// # Errors
    /// A value that cannot be used, or no place for the cache.
    pub fn from_env() -> Result<Self, HubError> {
        let mut options = Self::new(Cache::from_env()?);
        if let Some(endpoint) = text("HF_ENDPOINT")? {
            options.endpoint = endpoint;
        }
        options.token = token()?;
        let offline = text("HF_HUB_OFFLINE")?.unwrap_or_default();
        options.offline = matches!(offline.to_lowercase().as_str(), "1" | "true" | "yes" | "on");
        check_proxy(|name| env::var_os(name))?;
        Ok(options)
    }
}

/// Variables that name a proxy; the first that is set counts. The order is that of `ureq`.
const PROXIES: [&str; 6] =
    ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];

/// Refuses a proxy that cannot be used: `ureq` would go on without one, past whoever set it.
fn check_proxy(variable: impl Fn(&str) -> Option<OsString>) -> Result<(), HubError> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(|value| (name, value));
    let Some((name, value)) = PROXIES.into_iter().find_map(set) else { return Ok(()) };
    let usable = |proxy: &Proxy| {
        matches!(proxy.protocol(), ProxyProtocol::Http | ProxyProtocol::Https)
            && !proxy.host().is_empty()
    };
    if value.to_str().and_then(|url| Proxy::new(url).ok()).is_some_and(|proxy| usable(&proxy)) {
        return Ok(());
    }
    let text = value.to_string_lossy();
    // What stands before the @ is a password.
    let shown = match text.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => text.into_owned(),
    };
    let problem = format!(
        "is `{shown}`, expected the URL of an HTTP proxy such as http://proxy.example:8080; correct \
         or unset it"
    );
    Err(HubError::Setting { name, problem })
}

/// `HF_TOKEN`, or what `hf auth login` wrote.
fn token() -> Result<Option<Token>, HubError> {
    if let Some(text) = text("HF_TOKEN")? {
        return Token::new(&text).map(Some);
    }
    let file = match cache::path_of("HF_TOKEN_PATH") {
        Some(file) => file,
        None => cache::home()?.join("token"),
    };
    match fs::read_to_string(&file) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => Token::new(&text).map(Some),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(HubError::Disk { action: "read the token from", path: file, source }),
    }
}

/// A variable that is set and not empty.
fn text(name: &'static str) -> Result<Option<String>, HubError> {
    match env::var(name) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => {
            Err(HubError::Setting { name, problem: "is no text".into() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(set: &[(&str, &str)]) -> Result<(), String> {
        let find = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).into());
        check_proxy(find).map_err(|error| error.to_string())
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_refused_by_the_name_of_its_variable() {
        for value in ["nonsense://", "nonsense://host", "socks5://host:1080", "http://", " ", "a b"]
        {
            for name in PROXIES {
                let message = check(&[(name, value)]).unwrap_err();
                let wanted = format!("{name} is `{value}`, expected the URL of an HTTP proxy");
                assert!(message.starts_with(&wanted), "{message}");
            }
        }
        let message = check(&[("HTTPS_PROXY", "socks5://me:secret@host:1080")]).unwrap_err();
        assert!(message.contains("`…@host:1080`") && !message.contains("secret"), "{message}");
    }

    #[test]
    fn a_proxy_that_can_be_used_or_is_not_asked_is_none_of_our_business() {
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[("HTTPS_PROXY", "")]), Ok(()));
        for value in ["http://host:3128", "https://me:secret@host", "host:3128", "host"] {
            assert_eq!(check(&[("HTTPS_PROXY", value)]), Ok(()), "{value}");
        }
        assert_eq!(check(&[("ALL_PROXY", "http://host"), ("http_proxy", "nonsense://")]), Ok(()));
    }

    #[test]
    fn a_token_is_never_printed() {
        let token = Token::new(" hf_secret\n").unwrap();
        assert_eq!(token.secret(), "hf_secret");
        let options = PullOptions { token: Some(token), ..PullOptions::new(Cache::at("/x")) };
        assert!(!format!("{options:?}").contains("secret"));
        for bad in ["", "  ", "two words", "line\nbreak", "höch"] {
            let message = Token::new(bad).unwrap_err().to_string();
            assert!(message.starts_with("HF_TOKEN is no token"), "{message}");
        }
    }
}
