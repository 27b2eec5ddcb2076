//! Configuration and checkpoints of the Qwen3.5/3.6 MoE family.
//!
//! A folder is read in three steps. [`Config::read`] parses `config.json` and exists only for a
//! supported model. [`stop_tokens`] and [`GenerationDefaults`] come from the files beside it.
//! [`Checkpoint::open`] maps the weight files and proves that every tensor of the model is there
//! with the right shape and type; [`Checkpoint::weights`] hands the rows on in place.
//! [`synth`] writes random checkpoints of exact shapes.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod asked;
mod config;
pub mod engine;
mod error;
pub mod evaluation;
mod generation;
mod inspect;
pub mod plan;
mod printable;
pub mod sampling;
pub mod synth;
mod text_file;
mod weights;

pub use config::{Config, LayerKind, Quantization};
pub use error::{CheckpointError, ConfigError, ConfigProblem};
pub use generation::{GenerationDefaults, stop_tokens};
pub use inspect::{FileSummary, Inspection, TextFile};
pub use printable::Printable;
pub use weights::class::ClassSummary;
pub use weights::{
    Aside, Checkpoint, Dtype, HeaderEntry, HeaderError, Layout, TensorSpec, mlx_tensors,
    parse_header,
};
