//! Weight files: names, layouts, headers, mapped files, checkpoints.

mod assemble;
mod checkpoint;
pub(crate) mod class;
mod files;
pub(crate) mod layout;
mod mmap;
pub(crate) mod names;
mod resolve;
mod safetensors;

pub use checkpoint::{Aside, Checkpoint, Layout};
pub use layout::{Dtype, TensorSpec, mlx_tensors};
pub use safetensors::{HeaderEntry, HeaderError, parse_header};
