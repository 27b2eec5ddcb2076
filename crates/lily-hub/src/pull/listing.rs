//! The hub's list of a repository's files: names, sizes and hashes.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use hf_hub::api::sync::ApiBuilder;
use serde::Deserialize;

use super::client::{self, CONNECT, Failure, SILENCE, brief, host, said};
use super::settings::PullOptions;
use crate::error::HubError;
use crate::id::{ModelId, is_hex};

/// Far above the list of any model: a server that sends more means no good.
const MAX_BYTES: u64 = 32 << 20;

/// How the hub names a file's content, which is also the name of its blob in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    /// SHA-256 of the content: files kept in large file storage.
    Sha256(String),
    /// SHA-1 of git's blob header and the content: files kept in git.
    Git(String),
}

impl Hash {
    /// Hexadecimal digits.
    pub(super) fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::Git(digits) => digits,
        }
    }
}

/// A file of a repository.
#[derive(Clone, Debug)]
pub(super) struct RemoteFile {
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) hash: Hash,
}

/// The files at the top of a repository, by name.
#[derive(Debug)]
pub(super) struct Listing {
    /// `ORG/NAME`.
    pub(super) name: String,
    /// The hub.
    pub(super) host: String,
    /// What the revision is now. Everything is asked for by commit: a push in between cannot mix
    /// two versions.
    pub(super) commit: String,
    pub(super) files: BTreeMap<String, RemoteFile>,
}

#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Large>,
}

#[derive(Deserialize)]
struct Large {
    sha256: String,
    size: u64,
}

impl Listing {
    /// Asks the hub.
    pub(super) fn fetch(
        id: &ModelId,
        options: &PullOptions,
        cancel: &AtomicBool,
    ) -> Result<Self, HubError> {
        let endpoint = options.endpoint.trim_end_matches('/').to_owned();
        let host = host(&endpoint);
        let answer = |problem: String| HubError::Answer {
            host: host.clone(),
            name: id.name().into(),
            problem,
        };
        let api = ApiBuilder::from_cache(options.cache.hub().clone())
            .with_token(options.token.as_ref().map(|token| token.secret().to_owned()))
            .with_endpoint(endpoint.clone())
            .build()
            .map_err(|error| answer(error.to_string()))?;
        let request = api.repo(id.repo(id.revision())).info_request().query("blobs", "true");
        let what = format!("the files of {id}");
        let fetched = client::in_background(cancel, move || -> Result<_, Failure> {
            let request = request
                .config()
                .timeout_connect(Some(CONNECT))
                .timeout_recv_response(Some(SILENCE))
                .timeout_per_read(Some(SILENCE))
                .http_status_as_error(false)
                .build();
            let mut response = request.call().map_err(Failure::of)?;
            if let Some(refusal) = client::Refusal::of(&mut response) {
                return Ok(Err(refusal));
            }
            let body = response.body_mut().with_config().limit(MAX_BYTES).read_to_vec();
            Ok(Ok(body.map_err(Failure::of)?))
        });
        let Some(fetched) = fetched else {
            return Err(HubError::Interrupted { id: id.clone(), done: 0, total: 0 });
        };
        let body = fetched
            .map_err(|failure| failure.explain(&host, &what))?
            .map_err(|refusal| refusal.explain(id, &endpoint, options.token.is_some(), &what))?;
        let info: Info = serde_json::from_slice(&body).map_err(|error| {
            let said = said(&body);
            answer(format!("expected a list of files in JSON, found `{said}` ({error})"))
        })?;
        Self::of(id, host.clone(), info).map_err(answer)
    }

    /// Checks the hub's answer: names and hashes become paths.
    fn of(id: &ModelId, host: String, info: Info) -> Result<Self, String> {
        if !is_hex(&info.sha, 40) {
            let found = brief(&info.sha);
            return Err(format!("its commit is `{found}`, expected 40 hexadecimal digits"));
        }
        let mut files = BTreeMap::new();
        for sibling in info.siblings {
            // lily reads no folders inside of a model's folder.
            if sibling.rfilename.contains(['/', '\\']) {
                continue;
            }
            let (size, hash) = match (sibling.lfs, sibling.size, sibling.blob_id) {
                (Some(large), _, _) if is_hex(&large.sha256, 64) => {
                    (large.size, Hash::Sha256(large.sha256))
                }
                (None, Some(size), Some(blob)) if is_hex(&blob, 40) => (size, Hash::Git(blob)),
                _ => {
                    return Err(format!(
                        "it lists no size and hash of {}, which a download is checked against",
                        brief(&sibling.rfilename)
                    ));
                }
            };
            if size > MAX_FILE_BYTES {
                let name = brief(&sibling.rfilename);
                return Err(format!("it lists {size} bytes for {name}, more than any model has"));
            }
            let file = RemoteFile { name: sibling.rfilename.clone(), size, hash };
            files.insert(sibling.rfilename, file);
        }
        Ok(Self { name: id.name().into(), host, commit: info.sha, files })
    }
}

/// Larger than any file of a model, and so small that the sizes of a list can be added up.
const MAX_FILE_BYTES: u64 = 1 << 44;

/// Whether a name is that of a weight file, and safe in a path and in a URL.
pub(super) fn is_weight_file(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.ends_with(".safetensors")
        && !name.starts_with('.')
        && name.len() <= 255
        && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Listing, String> {
        Listing::of(&"a/b".parse().unwrap(), "hub".into(), serde_json::from_str(text).unwrap())
    }

    #[test]
    fn sizes_that_no_file_has_and_endless_texts_are_refused_in_few_words() {
        let (commit, git) = ("1".repeat(40), "2".repeat(40));
        let text = |name: &str, size: u64| {
            format!(
                r#"{{"sha": "{commit}", "siblings": [
                    {{"rfilename": "{name}", "size": {size}, "blobId": "{git}"}}]}}"#
            )
        };
        assert!(of(&text("config.json", MAX_FILE_BYTES)).is_ok());
        for size in [MAX_FILE_BYTES + 1, u64::MAX] {
            let reason = of(&text("config.json", size)).unwrap_err();
            assert!(reason.contains(&format!("{size} bytes for config.json")), "{reason}");
        }
        let long = "x".repeat(1 << 20);
        assert!(of(&text(&long, u64::MAX)).unwrap_err().len() < 300);
        let sha = format!(r#"{{"sha": "{long}", "siblings": []}}"#);
        assert!(of(&sha).unwrap_err().len() < 300);
    }

    #[test]
    fn sizes_and_hashes_of_both_kinds_of_files_are_read() {
        let (commit, git, sha) = ("1".repeat(40), "2".repeat(40), "3".repeat(64));
        let listing = of(&format!(
            r#"{{"sha": "{commit}", "siblings": [
                {{"rfilename": "config.json", "size": 5, "blobId": "{git}"}},
                {{"rfilename": "original/x.safetensors"}},
                {{"rfilename": "model.safetensors", "size": 7, "blobId": "{git}",
                  "lfs": {{"sha256": "{sha}", "size": 7, "pointerSize": 130}}}}]}}"#
        ))
        .unwrap();
        assert_eq!(listing.commit, commit);
        assert_eq!(listing.files.len(), 2);
        assert_eq!(listing.files["config.json"].hash, Hash::Git(git));
        assert_eq!(listing.files["model.safetensors"].hash, Hash::Sha256(sha));
    }

    #[test]
    fn an_answer_that_names_paths_or_no_hashes_is_refused() {
        let commit = "1".repeat(40);
        for (text, wanted) in [
            (r#"{"sha": "../../x"}"#.to_owned(), "40 hexadecimal digits"),
            (
                format!(r#"{{"sha": "{commit}", "siblings": [{{"rfilename": "config.json"}}]}}"#),
                "no size and hash of config.json",
            ),
            (
                format!(
                    r#"{{"sha": "{commit}", "siblings": [{{"rfilename": "x", "size": 1,
                        "lfs": {{"sha256": "../../../../x", "size": 1}}}}]}}"#
                ),
                "no size and hash of x",
            ),
        ] {
            let problem = of(&text).unwrap_err();
            assert!(problem.contains(wanted), "{problem}");
        }
    }

    #[test]
    fn names_of_weight_files_stay_in_their_folder() {
        assert!(is_weight_file("model-00001-of-00004.safetensors"));
        for name in [
            "../x.safetensors",
            "a/x.safetensors",
            ".x.safetensors",
            "x.bin",
            "x y.safetensors",
            "x?.safetensors",
            "a\\x.safetensors",
        ] {
            assert!(!is_weight_file(name), "{name}");
        }
    }
}
