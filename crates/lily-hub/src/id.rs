//! Names of models on the hub.

use std::fmt;
use std::str::FromStr;

use hf_hub::{Repo, RepoType};

use crate::error::HubError;

/// The revision that is meant where none is named.
const MAIN: &str = "main";
/// Longest name that the hub gives.
const MAX_LENGTH: usize = 96;

/// A model on the hub: `ORG/NAME`, or `ORG/NAME@REVISION`.
///
/// Only names that are safe in a path and in a URL exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelId {
    text: String,
    /// Length of the part before the `@`.
    name: usize,
}

impl ModelId {
    /// `ORG/NAME`.
    pub fn name(&self) -> &str {
        &self.text[..self.name]
    }

    /// A branch, a tag or a commit; `main` if none was named.
    pub fn revision(&self) -> &str {
        self.named_revision().unwrap_or(MAIN)
    }

    fn named_revision(&self) -> Option<&str> {
        self.text.get(self.name + 1..)
    }

    /// The revision, if it is a commit.
    pub(crate) fn commit(&self) -> Option<&str> {
        self.named_revision().filter(|revision| is_hex(revision, 40))
    }

    /// The same for `hf-hub`, at this revision.
    pub(crate) fn repo(&self, revision: &str) -> Repo {
        Repo::with_revision(self.name().to_owned(), RepoType::Model, revision.to_owned())
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for ModelId {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let (name, revision) = match text.split_once('@') {
            Some((name, revision)) => (name, Some(revision)),
            None => (text, None),
        };
        let mut parts = name.split('/');
        let named = parts.by_ref().take(2).filter(|part| is_name(part)).count() == 2;
        let whole = named && parts.next().is_none() && name.len() <= MAX_LENGTH;
        if whole && revision.is_none_or(is_revision) {
            return Ok(Self { text: text.into(), name: name.len() });
        }
        Err(HubError::Id { text: text.into() })
    }
}

/// Two hyphens stand for the slash in the cache's folder names.
fn is_name(part: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !part.is_empty()
        && part.chars().all(plain)
        && !part.starts_with(['-', '.'])
        && !part.ends_with(['-', '.'])
        && !part.contains("--")
        && !part.contains("..")
}

fn is_revision(revision: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
    revision.len() <= 255
        && revision
            .split('/')
            .all(|part| !part.is_empty() && part.chars().all(plain) && !part.starts_with('.'))
}

/// Whether a text is a hash of so many hexadecimal digits.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_two_names_and_perhaps_a_revision() {
        let id: ModelId = "mlx-community/Qwen3.6-35B-A3B-4bit".parse().unwrap();
        assert_eq!((id.name(), id.revision()), ("mlx-community/Qwen3.6-35B-A3B-4bit", "main"));
        let id: ModelId = "a/b@refs/pr/1".parse().unwrap();
        assert_eq!((id.name(), id.revision(), id.commit()), ("a/b", "refs/pr/1", None));
        assert_eq!(id.to_string(), "a/b@refs/pr/1");
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let id: ModelId = format!("a/b@{commit}").parse().unwrap();
        assert_eq!(id.commit(), Some(commit));
    }

    #[test]
    fn what_could_leave_the_cache_or_the_url_is_no_id() {
        for text in [
            "",
            "name",
            "a/b/c",
            "/a/b",
            "a/",
            "../b",
            "a/..",
            "a/b..c",
            "./b",
            "a/.b",
            "a--b/c",
            "a/b@",
            "a/b@../../x",
            "a/b@x//y",
            "a/b@/x",
            "a/b?x",
            "a/b#x",
            "a b/c",
            "a/b@x y",
            "a/b@x%2f",
            "https://huggingface.co/a/b",
            "a\\b/c",
            "a/b\n",
        ] {
            assert!(text.parse::<ModelId>().is_err(), "{text}");
        }
        assert!(format!("a/{}", "b".repeat(95)).parse::<ModelId>().is_err());
    }
}
