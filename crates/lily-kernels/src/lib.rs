//! Kernels: one folder for each, holding everything about it.

pub mod access;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
pub mod cpu;
pub mod gdn;
pub mod gdn_conv;
pub mod gdn_gate;
pub mod gdn_in;
pub mod gdn_out;
pub mod gdn_scan;
pub mod gdn_step;
pub mod math;
pub mod residual;
mod shape;
pub mod table;

pub use shape::{
    CHUNK, CHUNKED_FROM_TOKENS, GROUPED_TILE_ROWS, L2_EPS, LaunchContext, Mixer, ModelShape,
    O_SS_ROWS, SessionShape, StepArgs,
};
