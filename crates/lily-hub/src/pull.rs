//! Downloads a model into the cache.

mod client;
mod listing;
mod settings;
mod store;
mod transfer;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use serde::Serialize;

pub use settings::{PullOptions, Token};

use crate::error::HubError;
use crate::id::ModelId;
use crate::{CONFIG, INDEX, SINGLE, cache};
use client::Client;
use listing::{Listing, RemoteFile};
use store::Store;
use transfer::Transfer;

/// Small files that lily reads if they are there.
const SMALL: [&str; 4] =
    ["generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

/// How far a download is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The file that is on its way.
    pub file: &'a str,
    /// Bytes in the cache, of all files together.
    pub done: u64,
    /// Bytes of all files; grows once, when the index of the weights is known.
    pub total: u64,
}

/// Somebody who watches a download.
pub trait Watch {
    /// Bytes arrived, or were found in the cache.
    fn progress(&mut self, progress: Progress<'_>);

    /// The configuration is in `folder`; the weights follow unless this fails.
    ///
    /// # Errors
    /// The model is not wanted; the reason becomes that of [`HubError::Refused`].
    fn configuration(&mut self, folder: &Path) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// A file of a downloaded model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PulledFile {
    /// Its name in the folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// A model that is in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Pulled {
    /// `ORG/NAME`.
    pub model: String,
    /// The commit.
    pub commit: String,
    /// The folder with all files.
    pub folder: PathBuf,
    /// The files.
    pub files: Vec<PulledFile>,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes that came over the network now.
    pub received: u64,
    /// Bytes of broken off transfers that were found and not asked for again.
    pub resumed: u64,
}

/// Downloads the files of a model that lily reads, and links them into a folder of the cache.
///
/// What is in the cache is not downloaded again; what is there in part is continued. Every file
/// is checked against the size and hash that the hub lists. `cancel` is looked at several times a
/// second; what arrived until then is kept.
///
/// # Errors
/// See [`HubError`]; each says what to do.
pub fn pull(
    id: &ModelId,
    options: &PullOptions,
    cancel: &AtomicBool,
    watch: &mut dyn Watch,
) -> Result<Pulled, HubError> {
    if options.offline {
        return Err(HubError::Offline { id: id.clone() });
    }
    let client = Client::new(options)?;
    let listing = Listing::fetch(id, options, cancel)?;
    // The small ones first: they say which weights there are, and whether the model is any use.
    let mut wanted = listing.first()?;
    let store = Store::open(id, &listing.commit, options, cancel)?;
    let mut run =
        Run { id, options, cancel, client: &client, store: &store, received: 0, resumed: 0 };

    let total = sum(&wanted);
    let mut done = run.download(&wanted, total, 0, watch)?;
    let folder = store.snapshot();
    watch.configuration(&folder).map_err(|source| HubError::Refused { id: id.clone(), source })?;
    store.write_first_reference()?;
    let rest = listing.rest(&folder)?;
    let total = total + sum(&rest);
    done = run.download(&rest, total, done, watch)?;
    debug_assert_eq!(done, total);
    wanted.extend(rest);

    // Last: a reference to a model that is not whole would replace an older one that is.
    store.write_reference()?;
    let files = wanted.into_iter().map(|file| PulledFile { name: file.name, bytes: file.size });
    Ok(Pulled {
        model: id.name().into(),
        commit: listing.commit,
        folder,
        files: files.collect(),
        bytes: total,
        received: run.received,
        resumed: run.resumed,
    })
}

fn sum(files: &[RemoteFile]) -> u64 {
    files.iter().map(|file| file.size).sum()
}

/// A download that is running.
struct Run<'a> {
    id: &'a ModelId,
    options: &'a PullOptions,
    cancel: &'a AtomicBool,
    client: &'a Client,
    store: &'a Store<'a>,
    received: u64,
    resumed: u64,
}

impl Run<'_> {
    /// Brings files into the cache; `done` bytes are there already. Returns the new count.
    fn download(
        &mut self,
        files: &[RemoteFile],
        total: u64,
        mut done: u64,
        watch: &mut dyn Watch,
    ) -> Result<u64, HubError> {
        // Who handles one file knows of that file only.
        let of_all = |done: u64, error| match error {
            HubError::Interrupted { id, done: here, .. } => {
                HubError::Interrupted { id, done: done + here, total }
            }
            error => error,
        };
        let mut absent = Vec::new();
        for file in files {
            if self.store.holds(file).map_err(|error| of_all(done, error))? {
                done += file.size;
                watch.progress(Progress { file: &file.name, done, total });
            } else {
                absent.push(file);
            }
        }
        self.store.check_space(&absent)?;
        for file in absent {
            let transfer = Transfer {
                id: self.id,
                client: self.client,
                url: self.client.file_url(self.id, self.store.commit(), &file.name),
                file,
                store: self.store,
                options: self.options,
                cancel: self.cancel,
            };
            let mut report = |bytes: u64| {
                watch.progress(Progress { file: &file.name, done: done + bytes, total });
            };
            let got = transfer.run(&mut report).map_err(|error| of_all(done, error))?;
            self.received += got.received;
            self.resumed += got.resumed;
            done += file.size;
            self.store.link(file)?;
        }
        Ok(done)
    }
}

impl Listing {
    /// The files that do not depend on any other: all but the weights.
    fn first(&self) -> Result<Vec<RemoteFile>, HubError> {
        let config = self.file(CONFIG, "says what the model is")?;
        let index = self.files.get(INDEX);
        if index.is_none() && !self.files.contains_key(SINGLE) {
            let found = found_instead(&self.files);
            return Err(HubError::NoWeights { name: self.name.clone(), found });
        }
        let small = SMALL.iter().filter_map(|name| self.files.get(*name));
        Ok([config].into_iter().chain(index).chain(small).cloned().collect())
    }

    /// The weights: those that the index in `folder` names, or the single file.
    fn rest(&self, folder: &Path) -> Result<Vec<RemoteFile>, HubError> {
        if !self.files.contains_key(INDEX) {
            return Ok(vec![self.file(SINGLE, "holds the weights")?.clone()]);
        }
        let names = cache::shards(&folder.join(INDEX)).map_err(|error| HubError::Answer {
            host: self.host.clone(),
            name: self.name.clone(),
            problem: format!("{INDEX} is no index: {error}"),
        })?;
        let weights = names.iter().map(|name| {
            if !listing::is_weight_file(name) {
                return Err(HubError::FileName { name: self.name.clone(), file: name.clone() });
            }
            self.file(name, "the index of the weights names").cloned()
        });
        weights.collect()
    }

    fn file(&self, file: &str, needed_by: &'static str) -> Result<&RemoteFile, HubError> {
        let absent = || HubError::NoFile { name: self.name.clone(), file: file.into(), needed_by };
        self.files.get(file).ok_or_else(absent)
    }
}

/// What a repository without weights has, for people.
fn found_instead(files: &BTreeMap<String, RemoteFile>) -> String {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for name in files.keys() {
        let kind = name.rsplit_once('.').map_or("", |(_, kind)| kind);
        if matches!(kind, "safetensors" | "gguf" | "bin" | "pt" | "pth" | "onnx" | "npz" | "h5") {
            *kinds.entry(kind).or_default() += 1;
        }
    }
    let text: Vec<_> = kinds.iter().map(|(kind, n)| format!("{n} .{kind} file(s)")).collect();
    if text.is_empty() { "none".into() } else { text.join(", ") }
}
