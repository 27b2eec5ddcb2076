//! Models from the Hugging Face hub.
//!
//! [`ModelId`] names a model, [`Cache`] finds it in the cache that all programs of the hub share,
//! without a network, and `pull` (feature `pull`) downloads it there: only the files that lily
//! reads, resumed where an earlier download broke off, and checked against the hub's sizes and
//! hashes.
//!
//! Names, the layout of the cache and the hub's routes are those of `hf-hub`; the transfer is this
//! crate's own. `docs/decisions/0007-own-transfer-from-the-hub.md` says why.

#![forbid(unsafe_code)]

mod cache;
mod error;
mod id;
#[cfg(feature = "pull")]
mod pull;

pub use cache::Cache;
pub use error::HubError;
pub use id::ModelId;
#[cfg(feature = "pull")]
pub use pull::{Progress, PullOptions, Pulled, PulledFile, Token, Watch, pull};

/// Says what each weight file holds; only models of several files have it.
const INDEX: &str = "model.safetensors.index.json";
/// The weights of a model in one file.
const SINGLE: &str = "model.safetensors";
/// The configuration: without it a folder is no model.
const CONFIG: &str = "config.json";
