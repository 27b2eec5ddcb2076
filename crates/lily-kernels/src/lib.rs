//! Kernels: one folder for each, holding everything about it.
//!
//! `unsafe` is allowed in the modules marked so: the CPU faces and what they share.

#![deny(unsafe_code)]

pub mod access;
pub mod advance;
pub mod attention;
pub mod attn_flash;
pub mod attn_in;
pub mod attn_merge_gate;
pub mod attn_out;
pub mod attn_prepare;
pub mod attn_short;
pub mod attn_split;
pub mod attn_split_prepare;
#[allow(unsafe_code)]
pub mod choice;
pub mod combine;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[allow(unsafe_code)]
pub mod cpu;
pub mod draw;
pub mod embed;
pub mod experts_down;
pub mod experts_gate_up;
pub mod gdn;
pub mod gdn_chunk_prepare;
pub mod gdn_chunk_scan;
pub mod gdn_conv;
pub mod gdn_gate;
pub mod gdn_in;
pub mod gdn_out;
pub mod gdn_scan;
pub mod gdn_step;
pub mod gpu;
pub mod group_experts;
pub mod grouped_down;
pub mod grouped_gate_up;
pub mod head;
pub mod math;
#[allow(unsafe_code)]
pub mod norm;
#[allow(unsafe_code)]
pub mod residual;
pub mod router;
pub mod routing;
pub mod sample;
mod shape;
pub mod table;
pub mod topk;

pub use shape::{
    CHUNK, CHUNKED_FROM_TOKENS, GROUPED_TILE_ROWS, L2_EPS, LaunchContext, LiveRows, Mixer,
    ModelShape, O_SS_ROWS, SessionShape, StepArgs,
};
