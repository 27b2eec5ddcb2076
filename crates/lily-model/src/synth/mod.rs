//! Random checkpoints of exact shapes: for measuring and testing without trained weights.
//!
//! A checkpoint of the full-size model is 19.5 GB, so nothing is held in memory: [`plan`] lays out
//! files and headers, and [`write()`] makes each tensor block by block on all cores and writes it to
//! its place. Every value depends only on the seed and the tensor's name, hence a seed gives the
//! same bytes on every machine, whatever the number of threads.

mod folder;
mod memory;
mod plan;
mod presets;
mod random;
#[cfg(test)]
mod tests;
mod values;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::Value;

pub use memory::random_weights;
pub use plan::{SynthPlan, plan};
pub use presets::{PRESETS, config_for, preset, truncate_layers};
pub use writer::write;

use crate::error::ConfigError;

/// What to write, and where.
#[derive(Clone, Debug)]
pub struct SynthOptions {
    /// A `config.json`; without a quantisation section it gets MLX's 4-bit default.
    pub config: Value,
    /// Seed of all values.
    pub seed: u64,
    /// Folder to write to; made if it is missing.
    pub out: PathBuf,
    /// What to do about files that are already there.
    pub existing: Existing,
    /// Set to true by another thread to stop early; everything written is then removed.
    pub cancel: Option<Arc<AtomicBool>>,
}

impl SynthOptions {
    /// Options with seed 0 that keep existing files.
    pub fn new(config: Value, out: impl Into<PathBuf>) -> Self {
        Self { config, seed: 0, out: out.into(), existing: Existing::Keep, cancel: None }
    }
}

/// What to do with a folder that already holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Refuse, except that an identical random checkpoint is left as it is and what a cut run left
    /// behind is replaced.
    Keep,
    /// Remove the model in it (weight files, index, configuration), be it the same one, and write the new one.
    Replace,
}

/// How far the writing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynthProgress<'a> {
    /// Bytes of tensors written.
    pub bytes_done: u64,
    /// Bytes of all tensors.
    pub bytes_total: u64,
    /// Name of the file that the last bytes went to.
    pub file: &'a str,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynthReport {
    /// Weight files.
    pub files: usize,
    /// Tensors.
    pub tensors: usize,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Whether the identical checkpoint was there already and nothing was written.
    pub reused: bool,
}

/// Why a random checkpoint cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// A name that is neither a preset nor a JSON file.
    #[error(
        "expected a preset ({}) or a path that ends in `.json`, found `{found}`; name one of them",
        PRESETS.join(", ")
    )]
    UnknownPreset {
        /// The name given.
        found: String,
    },
    /// A configuration file that is not JSON.
    #[error("`{}` is not valid JSON ({source}); correct the file", .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and what.
        source: serde_json::Error,
    },
    /// The configuration is not one that lily runs.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A layer count that the configuration cannot be cut to.
    #[error(
        "{asked} layers were asked for, but the configuration has {found}; ask for 1 to {found}"
    )]
    Layers {
        /// Layers asked for.
        asked: usize,
        /// Layers of the configuration.
        found: usize,
    },
    /// The system starts no thread to write with.
    #[error(
        "no thread can be started ({source}); raise the limit of processes (ulimit -u), or end other programs"
    )]
    NoThread {
        /// What the system says.
        source: std::io::Error,
    },
    /// The tensor list names a tensor whose values are not defined here.
    #[error("tensor `{name}` has no rule for random values; add one to the generator")]
    UnknownTensor {
        /// Name in the file.
        name: String,
    },
    /// The folder holds something else.
    #[error(
        "`{}` should be empty or hold this very checkpoint, but it has `{found}`; \
         choose another folder, or overwrite the model in it (`--force`)", .out.display()
    )]
    NotEmpty {
        /// The folder.
        out: PathBuf,
        /// One of the files in it.
        found: String,
    },
    /// The disk is too small.
    #[error(
        "`{}` needs {needed} bytes, but its disk has {available} free; \
         free {} bytes or choose another disk", .out.display(), needed - available
    )]
    NoSpace {
        /// The folder.
        out: PathBuf,
        /// Bytes of all files.
        needed: u64,
        /// Bytes that can be used.
        available: u64,
    },
    /// A file operation failed.
    #[error("cannot {action} `{}` ({source}); check the path and its permissions", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Stopped through [`SynthOptions::cancel`].
    #[error("stopped before the checkpoint was complete; what was written has been removed")]
    Cancelled,
}
