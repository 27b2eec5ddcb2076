//! Configuration and checkpoints of the Qwen3.5/3.6 MoE family.
//!
//! [`Config::read`] parses `config.json` and exists only for a supported model.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod config;
mod error;
pub mod synth;
mod weights;

pub use config::{Config, LayerKind, Quantization};
pub use error::{ConfigError, ConfigProblem};
pub use weights::{Dtype, TensorSpec, mlx_tensors};
