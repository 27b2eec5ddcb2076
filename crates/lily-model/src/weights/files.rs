//! The weight files of a folder: found, mapped, and checked against their index.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use lily_files::Files;
use serde_json::Value;

use super::layout::Dtype;
use super::{mmap, safetensors};
use crate::error::CheckpointError;
use crate::text_file::{read_text_of, without_mark};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// A tensor in place in its mapped file.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// Name in the file.
    pub(crate) name: String,
    /// The file, as an index into [`WeightFiles::files`].
    pub(crate) file: usize,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Bytes,
}

/// All weight files of a folder.
#[derive(Debug)]
pub(crate) struct WeightFiles {
    /// Paths and sizes in bytes.
    pub(crate) files: Vec<(PathBuf, u64)>,
    /// Their mapped contents.
    pub(crate) maps: Vec<Bytes>,
    /// Tensors of all files, in file order.
    pub(crate) tensors: Vec<Stored>,
    /// The file that says which tensors there are: the index, or the single file.
    pub(crate) root: PathBuf,
    /// Files that look like weights and were not read.
    pub(crate) ignored: Vec<String>,
    /// Whether the files are a part of the program, and not on a disk.
    pub(crate) packed: bool,
}

impl WeightFiles {
    /// Maps `model.safetensors`, or the shards of `model.safetensors.index.json`.
    pub(crate) fn open(model: Files<'_>) -> Result<Self, CheckpointError> {
        if is_there(model, INDEX)? {
            return Self::open_shards(model);
        }
        if !is_there(model, SINGLE)? {
            return Err(CheckpointError::NoWeights(model.root().into()));
        }
        let mut found = Self::none(model, SINGLE);
        found.add(model, SINGLE)?;
        found.ignored = other_files(model, |name| name == SINGLE)?;
        Ok(found)
    }

    fn none(model: Files<'_>, root: &str) -> Self {
        Self {
            files: vec![],
            maps: vec![],
            tensors: vec![],
            root: model.path(root),
            ignored: vec![],
            packed: matches!(model, Files::Packed(_)),
        }
    }

    fn open_shards(model: Files<'_>) -> Result<Self, CheckpointError> {
        let map = read_index(model)?;
        let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, shard) in &map {
            shards.entry(shard).or_default().push(tensor);
        }
        for (shard, tensors) in &shards {
            let file = model.path(shard);
            let there = match model {
                Files::Folder(_) => file.is_file(),
                Files::Packed(_) => model.has(shard),
            };
            if !there {
                return Err(CheckpointError::MissingShard { file, tensor: tensors[0].into() });
            }
        }
        let others = other_files(model, |name| shards.contains_key(name))?;
        // A second set of shards means that two versions are mixed; other files may be anything.
        if let Some(stray) = others.iter().find(|name| name.starts_with("model")) {
            return Err(CheckpointError::StrayShard(model.path(stray)));
        }
        let mut found = Self { ignored: others, ..Self::none(model, INDEX) };
        for (shard, tensors) in &shards {
            let file = model.path(shard);
            let first = found.tensors.len();
            found.add(model, shard)?;
            let held = &found.tensors[first..];
            for tensor in held {
                let expected = map.get(&tensor.name);
                if expected.is_none_or(|expected| expected != shard) {
                    let expected = expected.map_or("nowhere".into(), |name| format!("in `{name}`"));
                    let tensor = tensor.name.clone();
                    return Err(CheckpointError::Misplaced { file, tensor, expected });
                }
            }
            // Headers are sorted by name, and so are the index's entries.
            let absent = |name: &&&str| {
                held.binary_search_by(|tensor| tensor.name.as_str().cmp(name)).is_err()
            };
            if let Some(tensor) = tensors.iter().find(absent) {
                return Err(CheckpointError::NotInShard { file, tensor: (*tensor).into() });
            }
        }
        Ok(found)
    }

    /// Maps one file and appends its tensors, sorted by name.
    fn add(&mut self, model: Files<'_>, name: &str) -> Result<(), CheckpointError> {
        let file = model.path(name);
        let bytes = match model {
            Files::Folder(_) => mmap::map(&file),
            Files::Packed(packed) => {
                let bytes = packed.file(name).map(Bytes::from_static);
                bytes.ok_or_else(|| io::ErrorKind::NotFound.into())
            }
        };
        let bytes = bytes.map_err(|source| match source.kind() {
            io::ErrorKind::OutOfMemory => {
                CheckpointError::AddressSpace { file: file.clone(), source }
            }
            _ => CheckpointError::Unreadable { file: file.clone(), source },
        })?;
        let header = safetensors::parse_header(&bytes)
            .map_err(|problem| CheckpointError::Header { file: file.clone(), problem })?;
        let at = self.files.len();
        self.tensors.extend(header.into_iter().map(|(name, entry)| Stored {
            name,
            file: at,
            dtype: entry.dtype,
            shape: entry.shape,
            data: bytes.slice(entry.bytes),
        }));
        self.files.push((file, bytes.len() as u64));
        self.maps.push(bytes);
        Ok(())
    }

    /// Path of a tensor's file.
    pub(crate) fn path(&self, stored: &Stored) -> PathBuf {
        self.files[stored.file].0.clone()
    }
}

/// Whether a file is there. What has its name and is no file is not taken for absent, nor is a link that
/// leads nowhere: the weights would be looked for elsewhere.
fn is_there(model: Files<'_>, name: &str) -> Result<bool, CheckpointError> {
    let Files::Folder(folder) = model else {
        return Ok(model.has(name));
    };
    let file = &folder.join(name);
    let unreadable = |source| CheckpointError::Unreadable { file: file.into(), source };
    match std::fs::symlink_metadata(file) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(unreadable(error)),
    }
    if std::fs::metadata(file).map_err(unreadable)?.is_file() {
        return Ok(true);
    }
    Err(unreadable(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")))
}

/// The `weight_map` of an index: tensor name to file name.
fn read_index(model: Files<'_>) -> Result<BTreeMap<String, String>, CheckpointError> {
    let refuse = |reason: String| CheckpointError::Index { file: model.path(INDEX), reason };
    let text = read_text_of(model, INDEX).map_err(|e| refuse(e.to_string()))?;
    let root: Value =
        serde_json::from_str(without_mark(&text)).map_err(|e| refuse(e.to_string()))?;
    let Some(map) = root.get("weight_map").and_then(Value::as_object) else {
        return Err(refuse("it has no object `weight_map`".into()));
    };
    if map.is_empty() {
        return Err(refuse("its `weight_map` is empty".into()));
    }
    let entry = |(tensor, shard): (&String, &Value)| match shard.as_str() {
        // A name with folders in it could point anywhere.
        Some(shard) if Path::new(shard).file_name().is_some_and(|name| name == shard) => {
            Ok((tensor.clone(), shard.to_owned()))
        }
        _ => Err(refuse(format!("tensor `{tensor}` is in {shard}, need the name of a file"))),
    };
    map.iter().map(entry).collect()
}

/// Names of `*.safetensors` files in the folder that are not in use, sorted.
fn other_files(
    model: Files<'_>,
    used: impl Fn(&str) -> bool,
) -> Result<Vec<String>, CheckpointError> {
    let Files::Folder(folder) = model else {
        return Ok(Vec::new());
    };
    let unreadable = |source| CheckpointError::Unreadable { file: folder.into(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") && !used(&name) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_as_the_weights_and_is_no_file_is_named_and_not_taken_for_absent() {
        for name in [INDEX, SINGLE] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(name);
            let refusal = || WeightFiles::open(folder.path().into()).unwrap_err().to_string();
            std::fs::create_dir(&path).unwrap();
            let wanted = format!("`{}` cannot be read (it is no regular file)", path.display());
            assert!(refusal().starts_with(&wanted), "{}", refusal());
            std::fs::remove_dir(&path).unwrap();
            #[cfg(unix)]
            {
                let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
                assert!(made.success());
                assert!(refusal().starts_with(&wanted), "{}", refusal());
                std::fs::remove_file(&path).unwrap();
                std::os::unix::fs::symlink("nowhere", &path).unwrap();
                let wanted = format!("`{}` cannot be read (No such file", path.display());
                assert!(refusal().starts_with(&wanted), "{}", refusal());
                std::fs::remove_file(&path).unwrap();
            }
            assert!(refusal().contains("holds neither"), "{}", refusal());
        }
    }
}
