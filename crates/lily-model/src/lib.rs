//! Configuration and checkpoints of the Qwen3.5/3.6 MoE family.
//!
//! [`Config::read`] parses `config.json` and exists only for a supported model.
//! [`synth`] writes random checkpoints of exact shapes.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod config;
mod error;
mod generation;
mod inspect;
pub mod synth;
mod weights;

pub use config::{Config, LayerKind, Quantization};
pub use error::{CheckpointError, ConfigError, ConfigProblem};
pub use generation::{GenerationDefaults, stop_tokens};
pub use inspect::{FileSummary, Inspection};
pub use weights::class::ClassSummary;
pub use weights::{
    Aside, Checkpoint, Dtype, HeaderEntry, HeaderError, Layout, TensorSpec, mlx_tensors,
    parse_header,
};
