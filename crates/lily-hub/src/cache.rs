//! The cache of the hub: one for all programs of a user.
//!
//! `models--ORG--NAME/` holds `blobs/` by hash, `snapshots/COMMIT/` with links to them, and
//! `refs/REVISION` with a commit.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::HubError;
use crate::id::ModelId;
use crate::{CONFIG, INDEX, SINGLE};

/// Far above any index.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// A cache.
#[derive(Clone, Debug)]
pub struct Cache {
    hub: hf_hub::Cache,
}

impl Cache {
    /// The cache in this folder.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { hub: hf_hub::Cache::new(folder.into()) }
    }

    /// The user's cache: `HF_HUB_CACHE`, `HF_HOME/hub`, `XDG_CACHE_HOME/huggingface/hub` or
    /// `~/.cache/huggingface/hub`.
    ///
    /// # Errors
    /// [`HubError::NoHome`], or a variable that names something else than a folder.
    pub fn from_env() -> Result<Self, HubError> {
        let folder = match folder_of("HF_HUB_CACHE")? {
            Some(folder) => folder,
            None => home()?.join("hub"),
        };
        Ok(Self::at(folder))
    }

    /// The folder of the cache.
    pub fn folder(&self) -> &Path {
        self.hub.path()
    }

    /// The folder of a model, as far as it was downloaded whole. Uses no network.
    ///
    /// # Errors
    /// [`HubError::NotCached`] or [`HubError::Incomplete`], both of which name the command that
    /// helps.
    pub fn find(&self, id: &ModelId) -> Result<PathBuf, HubError> {
        let repo = self.hub.repo(id.repo(id.revision()));
        let config = match id.commit() {
            Some(commit) => Some(repo.pointer_path(commit).join(CONFIG)),
            None => repo.get(CONFIG),
        };
        let Some(folder) =
            config.as_deref().filter(|config| config.is_file()).and_then(Path::parent)
        else {
            return Err(HubError::NotCached { id: id.clone(), cache: self.folder().into() });
        };
        let index = folder.join(INDEX);
        // An index that cannot be read is for whoever opens the model to explain.
        let files = match shards(&index) {
            Ok(files) => files,
            Err(_) if index.exists() => BTreeSet::new(),
            Err(_) => BTreeSet::from([SINGLE.to_owned()]),
        };
        match files.into_iter().find(|file| !folder.join(file).is_file()) {
            Some(file) => Err(HubError::Incomplete { id: id.clone(), file }),
            None => Ok(folder.into()),
        }
    }

    /// The same for `hf-hub`.
    #[cfg(feature = "pull")]
    pub(crate) fn hub(&self) -> &hf_hub::Cache {
        &self.hub
    }
}

/// The folder that holds the cache and the token: `HF_HOME`, or what stands for it.
///
/// # Errors
/// [`HubError::NoHome`], or a variable that names something else than a folder.
pub(crate) fn home() -> Result<PathBuf, HubError> {
    if let Some(folder) = folder_of("HF_HOME")? {
        return Ok(folder);
    }
    let caches = match absolute(path_of(CACHES)) {
        Some(path) => Some(folder(CACHES, path)?),
        None => env::home_dir().map(|home| home.join(".cache")),
    };
    caches.map(|caches| caches.join("huggingface")).ok_or(HubError::NoHome)
}

/// The user's caches. A relative path in it is to be ignored, says the specification that it comes from: it
/// would be another folder wherever the program starts.
const CACHES: &str = "XDG_CACHE_HOME";

fn absolute(path: Option<PathBuf>) -> Option<PathBuf> {
    path.filter(|path| path.is_absolute())
}

/// The folder that a variable names; it need not be there yet.
///
/// # Errors
/// Something else is there.
fn folder_of(variable: &'static str) -> Result<Option<PathBuf>, HubError> {
    path_of(variable).map(|path| folder(variable, path)).transpose()
}

fn folder(name: &'static str, path: PathBuf) -> Result<PathBuf, HubError> {
    let is_something_else = match fs::metadata(&path) {
        Ok(found) => !found.is_dir(),
        // A part of it is no folder.
        Err(error) => error.kind() == io::ErrorKind::NotADirectory,
    };
    if is_something_else {
        let problem = format!("is `{}`, which is no folder; set it to a folder", path.display());
        return Err(HubError::Setting { name, problem });
    }
    Ok(path)
}

/// The path that a variable names. A tilde is the home folder, as shells would have it.
pub(crate) fn path_of(variable: &str) -> Option<PathBuf> {
    let value: OsString = env::var_os(variable).filter(|value| !value.is_empty())?;
    let path = PathBuf::from(value);
    match path.strip_prefix("~") {
        Ok(rest) => Some(env::home_dir()?.join(rest)),
        Err(_) => Some(path),
    }
}

/// Names of the weight files that an index lists.
///
/// # Errors
/// The file is missing, too large, or no index.
pub(crate) fn shards(index: &Path) -> io::Result<BTreeSet<String>> {
    let invalid = |problem: &str| io::Error::new(io::ErrorKind::InvalidData, problem);
    let metadata = fs::metadata(index)?;
    if !metadata.is_file() || metadata.len() > MAX_INDEX_BYTES {
        return Err(invalid("it is no regular file of a sensible size"));
    }
    let root: Value = serde_json::from_slice(&fs::read(index)?)?;
    let map = root.get("weight_map").and_then(Value::as_object);
    let map = map.filter(|map| !map.is_empty()).ok_or_else(|| invalid("it has no weight_map"))?;
    let name = |shard: &Value| shard.as_str().map(Into::into);
    map.values().map(name).collect::<Option<_>>().ok_or_else(|| invalid("a file has no name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn cache() -> (tempfile::TempDir, Cache, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("models--a--b");
        let snapshot = model.join("snapshots").join(COMMIT);
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(model.join("refs")).unwrap();
        fs::write(model.join("refs/main"), COMMIT).unwrap();
        let cache = Cache::at(folder.path());
        (folder, cache, snapshot)
    }

    #[test]
    fn a_variable_for_a_folder_that_names_something_else_is_refused_by_its_name() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, "x").unwrap();
        for path in [file.clone(), file.join("below")] {
            let message = folder("HF_HOME", path.clone()).unwrap_err().to_string();
            let wanted = format!("HF_HOME is `{}`, which is no folder", path.display());
            assert!(message.starts_with(&wanted), "{message}");
        }
        for path in [place.path().to_owned(), place.path().join("new/folder")] {
            assert_eq!(folder("HF_HOME", path.clone()).unwrap(), path);
        }
    }

    #[test]
    fn a_relative_folder_of_caches_is_ignored() {
        assert_eq!(absolute(Some("caches".into())), None);
        assert_eq!(absolute(Some("./a".into())), None);
        let whole = env::temp_dir().join("caches");
        assert_eq!(absolute(Some(whole.clone())), Some(whole));
        assert_eq!(absolute(None), None);
    }

    #[test]
    fn a_whole_model_is_found_by_branch_and_by_commit() {
        let (_folder, cache, snapshot) = cache();
        fs::write(snapshot.join(CONFIG), "{}").unwrap();
        fs::write(snapshot.join(SINGLE), "x").unwrap();
        for id in ["a/b", "a/b@main", &format!("a/b@{COMMIT}")] {
            assert_eq!(cache.find(&id.parse().unwrap()).unwrap(), snapshot, "{id}");
        }
        for id in ["a/c", "a/b@v2", "a/b@1123456789abcdef0123456789abcdef01234567"] {
            let message = cache.find(&id.parse().unwrap()).unwrap_err().to_string();
            assert!(message.contains(&format!("`lily pull {id}`")), "{message}");
        }
    }

    #[test]
    fn a_broken_off_download_is_not_taken_for_a_model() {
        let (_folder, cache, snapshot) = cache();
        let id: ModelId = "a/b".parse().unwrap();
        assert!(matches!(cache.find(&id), Err(HubError::NotCached { .. })));
        fs::write(snapshot.join(CONFIG), "{}").unwrap();
        let missing = |wanted: &str| {
            assert!(
                matches!(cache.find(&id), Err(HubError::Incomplete { file, .. }) if file == wanted)
            );
        };
        missing(SINGLE);
        let index = r#"{"weight_map": {"x": "one.safetensors", "y": "two.safetensors"}}"#;
        fs::write(snapshot.join(INDEX), index).unwrap();
        fs::write(snapshot.join("one.safetensors"), "x").unwrap();
        missing("two.safetensors");
        // A link to a blob that is not there yet.
        #[cfg(unix)]
        std::os::unix::fs::symlink("../../blobs/none", snapshot.join("two.safetensors")).unwrap();
        missing("two.safetensors");
        fs::remove_file(snapshot.join("two.safetensors")).unwrap();
        fs::write(snapshot.join("two.safetensors"), "x").unwrap();
        assert_eq!(cache.find(&id).unwrap(), snapshot);
    }
}
