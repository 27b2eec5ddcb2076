//! The CPU device.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod arena;
mod bandwidth;
mod cores;
#[allow(unsafe_code)]
mod device;
mod load;
#[allow(unsafe_code)]
mod pool;

use lily_plan::{Element, Precision};

pub use device::{CpuDevice, CpuOptions};
pub use lily_kernels::cpu::{Numerics, Simd};
pub use load::Load;

/// Element types without `--exact`: matrix inputs stay f32 in memory and are rounded to 8 bits inside
/// the kernels; keys and values are bfloat16.
pub const DEFAULT_PRECISION: Precision = Precision { kv: Element::Bf16, ..Precision::EXACT };
