//! The CPU device.

mod arena;
mod device;
mod pool;

pub use device::{CpuDevice, CpuOptions};
pub use lily_kernels::cpu::Numerics;
