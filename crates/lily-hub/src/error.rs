//! What can go wrong between a name and a folder.

use std::io;
use std::path::PathBuf;

use crate::id::ModelId;

/// Where a name does not lead to a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// A text is no name of a model on the hub: a slip, a URL, or a path.
    #[error(
        "`{text}` is no model on the hub, expected ORG/NAME or ORG/NAME@REVISION, such as \
         mlx-community/Qwen3.6-35B-A3B-4bit"
    )]
    Id {
        /// What was given.
        text: String,
    },
    /// Nobody downloaded the model into this cache.
    #[error(
        "{id} is not in the cache {}; `lily pull {id}` downloads it",
        cache.display()
    )]
    NotCached {
        /// The model.
        id: ModelId,
        /// The cache.
        cache: PathBuf,
    },
    /// A download broke off, and files of the model are not there.
    #[error(
        "the download of {id} is not complete ({file} is missing); `lily pull {id}` continues it"
    )]
    Incomplete {
        /// The model.
        id: ModelId,
        /// A file that is missing.
        file: String,
    },
    /// There is no place for the cache.
    #[error("found no home folder for the cache; set HF_HOME to a folder")]
    NoHome,
    /// An environment variable has a value that cannot be used.
    #[error("{name} {problem}")]
    Setting {
        /// The variable.
        name: &'static str,
        /// What is wrong, what is expected.
        problem: String,
    },
    /// The environment forbids the network.
    #[error("HF_HUB_OFFLINE is set, so {id} is not downloaded; unset it to allow the network")]
    Offline {
        /// The model.
        id: ModelId,
    },
    /// The hub does not know the repository, or does not show it without a token.
    #[error(
        "found no repository {name} at {endpoint}; check the name, and if it is private set \
         HF_TOKEN to a token that may read it"
    )]
    MissingRepo {
        /// `ORG/NAME`.
        name: String,
        /// The hub.
        endpoint: String,
    },
    /// The repository has no such branch, tag or commit.
    #[error(
        "{name} has no revision `{revision}`; its branches and tags are at \
         {endpoint}/{name}/tree/main"
    )]
    MissingRevision {
        /// `ORG/NAME`.
        name: String,
        /// What was asked for.
        revision: String,
        /// The hub.
        endpoint: String,
    },
    /// The licence must be accepted first, or the token is one of another account.
    #[error(
        "{name} is gated: accept its licence at {endpoint}/{name}, then set HF_TOKEN to a token of \
         that account from {endpoint}/settings/tokens"
    )]
    Gated {
        /// `ORG/NAME`.
        name: String,
        /// The hub.
        endpoint: String,
    },
    /// The token is wrong, expired, or may not read the repository.
    #[error(
        "{endpoint} refuses the token for {name} (status {status}); set HF_TOKEN to a valid one from \
         {endpoint}/settings/tokens, or unset it for a public model"
    )]
    Token {
        /// `ORG/NAME`.
        name: String,
        /// The hub.
        endpoint: String,
        /// The status of its answer.
        status: u16,
    },
    /// The server answered, but not with what was asked for.
    #[error(
        "{host} answers the request for {what} with {answer}, expected status 200; try again later"
    )]
    Status {
        /// The server.
        host: String,
        /// What was asked for.
        what: String,
        /// The status of its answer and what it says.
        answer: String,
    },
    /// The server answered, but not as servers of files do: another program, or a proxy.
    #[error(
        "{host} answers the request for {what} with what cannot be used: {problem}; check HF_ENDPOINT, \
         or try again later"
    )]
    Nonsense {
        /// The server.
        host: String,
        /// What was asked for.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// The server cannot be reached, or the connection broke.
    #[error("cannot reach {host} for {what}: {problem}; check the network, or HF_ENDPOINT")]
    Network {
        /// The server.
        host: String,
        /// What was asked for.
        what: String,
        /// What the system says.
        problem: String,
    },
    /// The hub's answer is not what its API promises, such as a proxy's page.
    #[error("{host} describes {name} in a way that cannot be used: {problem}")]
    Answer {
        /// The server.
        host: String,
        /// `ORG/NAME`.
        name: String,
        /// What is wrong, what is expected.
        problem: String,
    },
    /// The index names a weight file outside of the folder, or with odd characters.
    #[error(
        "{name} names a weight file `{file}`, need letters, digits, `.`, `_`, `-` and the ending \
         .safetensors; it is not downloaded"
    )]
    FileName {
        /// `ORG/NAME`.
        name: String,
        /// The name.
        file: String,
    },
    /// A file that the model needs is not in the repository.
    #[error("{name} has no {file}, which {needed_by}; choose another repository of the model")]
    NoFile {
        /// `ORG/NAME`.
        name: String,
        /// The file.
        file: String,
        /// Who needs it.
        needed_by: &'static str,
    },
    /// The repository holds the model in another format only.
    #[error(
        "{name} holds no weights that lily reads: expected model.safetensors or {index}, found \
         {found}; choose a repository in the MLX or Hugging Face layout",
        index = crate::INDEX
    )]
    NoWeights {
        /// `ORG/NAME`.
        name: String,
        /// What there is.
        found: String,
    },
    /// The cache has a note for one revision where the other needs a folder, or the reverse.
    #[error(
        "the cache cannot note the revision of {id} beside that of `{other}` in {}; remove the latter \
         if nobody needs it, or run `lily pull {}@{commit}`, which needs no note",
        path.display(),
        id.name()
    )]
    Revisions {
        /// The model.
        id: ModelId,
        /// What the revision is now.
        commit: String,
        /// The note or folder that is in the way.
        path: PathBuf,
        /// The revision or revisions that it is for.
        other: String,
    },
    /// The disk cannot hold the download.
    #[error(
        "{id} needs {needed} more bytes, but the disk of {} has {free} free; free {} bytes, or set \
         HF_HOME to a folder on a larger disk",
        folder.display(),
        needed - free
    )]
    NoSpace {
        /// The model.
        id: ModelId,
        /// Bytes that are still to be written.
        needed: u64,
        /// Free bytes, fewer than needed.
        free: u64,
        /// The cache.
        folder: PathBuf,
    },
    /// The disk became full during the download.
    #[error(
        "the disk of {} is full after {done} of {size} bytes of {file}; free {} bytes and run \
         `lily pull {id}` again, it goes on from there",
        folder.display(),
        size - done
    )]
    DiskFull {
        /// The model.
        id: ModelId,
        /// The file that did not fit.
        file: String,
        /// Its bytes on disk.
        done: u64,
        /// Its bytes.
        size: u64,
        /// The cache.
        folder: PathBuf,
    },
    /// A connection ended too early, again and again.
    #[error(
        "the transfer of {file} from {host} broke off after {done} of {size} bytes ({problem}); run \
         `lily pull {id}` again, it goes on from there"
    )]
    BrokeOff {
        /// The model.
        id: ModelId,
        /// The file.
        file: String,
        /// The server.
        host: String,
        /// Bytes that are kept.
        done: u64,
        /// Bytes of the file.
        size: u64,
        /// What happened.
        problem: String,
    },
    /// The server has a file of another size than the hub's list says.
    #[error(
        "{host} sends {found} bytes for {file}, expected {size}; the repository may just have \
         changed, run `lily pull {id}` again"
    )]
    Size {
        /// The model.
        id: ModelId,
        /// The file.
        file: String,
        /// The server.
        host: String,
        /// Bytes that the server announces.
        found: u64,
        /// Bytes by the hub's list.
        size: u64,
    },
    /// A file arrived damaged: a bad disk or memory, a proxy, or a mirror that cheats.
    #[error(
        "{file} has the hash {found}, expected {expected}; it was deleted, run `lily pull {id}` \
         again"
    )]
    Hash {
        /// The model.
        id: ModelId,
        /// The file.
        file: String,
        /// Hash of what arrived, in hexadecimal.
        found: String,
        /// Hash by the hub's list.
        expected: String,
    },
    /// Another program downloads the same file.
    #[error("another download of {file} is running ({} is locked); wait for it or end it", lock.display())]
    Locked {
        /// The file.
        file: String,
        /// The lock.
        lock: PathBuf,
    },
    /// The cache cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    Disk {
        /// What failed.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Whoever watches the download does not want this model.
    #[error("{id} was not downloaded")]
    Refused {
        /// The model.
        id: ModelId,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Somebody asked to stop.
    #[error(
        "stopped, {done} of {total} bytes of {id} are kept; run `lily pull {id}` again, it goes on \
         from there"
    )]
    Interrupted {
        /// The model.
        id: ModelId,
        /// Bytes in the cache.
        done: u64,
        /// Bytes of the files known so far.
        total: u64,
    },
}
