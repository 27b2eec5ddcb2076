//! Weight files: names, layouts, headers, mapped files, checkpoints.

mod layout;
pub(crate) mod names;

pub use layout::{Dtype, TensorSpec, mlx_tensors};
