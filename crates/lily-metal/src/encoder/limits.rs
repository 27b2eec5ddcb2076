//! What a device allows.

use lily_kernels::gpu::Products;

use crate::chip::Gpu;
use crate::predict::{SIMDGROUP_TFLOPS, TENSOR_TFLOPS};

/// Limits of a device, and how fast it surely is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Largest allocation in bytes: `maxBufferLength`.
    pub allocation_bytes: u64,
    /// Bytes of an allocation that holds several buffers, at most; a larger buffer gets one of its own.
    pub arena_bytes: u64,
    /// Offsets of buffers in the constant address space are multiples of it. The feature tables ask for 4
    /// bytes on Apple's GPU families, for 32 on the Mac family and for 256 on older Macs; the largest holds everywhere.
    pub constant_alignment: u64,
    /// Offsets of buffers in the device address space are multiples of it: the size of the largest element
    /// that kernels read at once.
    pub device_alignment: u64,
    /// Entries of the buffer argument table.
    pub buffers: u32,
    /// Threads of a threadgroup.
    pub threads: u32,
    /// Bytes of threadgroup memory.
    pub threadgroup_bytes: u64,
    /// Threads of a simdgroup.
    pub simd_width: u32,
    /// Threadgroups along an axis of a grid.
    pub grid: u32,
    /// Commands of an indirect command buffer that are executed at once: 16,384 on the Mac family; Apple's families
    /// have no limit.
    pub indirect_commands: u32,
    /// Slowest pace to reckon with.
    pub pace: Pace,
}

impl Default for Limits {
    /// What every Apple GPU since the M1 has.
    fn default() -> Self {
        Self {
            // Below every Mac's `maxBufferLength`, which is about half of its memory.
            allocation_bytes: 3 << 30,
            arena_bytes: 2 << 30,
            constant_alignment: 256,
            device_alignment: 16,
            buffers: 31,
            threads: 1024,
            threadgroup_bytes: 32 << 10,
            simd_width: 32,
            grid: u32::MAX,
            indirect_commands: 1 << 14,
            pace: Pace::default(),
        }
    }
}

/// Speed that a device surely reaches in long launches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Arithmetic operations a second in matrix products and attention.
    pub flops: f64,
    /// Bytes a second from memory.
    pub bytes: f64,
}

impl Pace {
    /// Half of the arithmetic that a GPU is [predicted](crate::predict) to do in this form of products, and half of its
    /// published bandwidth: nothing is measured, and a bound must hold on a warm machine whose screen is drawn meanwhile.
    ///
    /// The form is taken for all launches. With tensor operations, a chunk's others (the delta rule above all) are slower
    /// than that; they are few enough that a chunk takes less than six tenths of its estimate as predicted.
    pub fn of(gpu: &Gpu, products: Products) -> Self {
        let core_tflops = match products {
            Products::SimdgroupMatrix => SIMDGROUP_TFLOPS,
            Products::TensorOperations => TENSOR_TFLOPS,
        };
        Self {
            flops: 0.5 * core_tflops * 1e12 * f64::from(gpu.cores),
            bytes: 0.5 * gpu.bandwidth_gb_s * 1e9,
        }
    }
}

impl Default for Pace {
    /// Below half of the slowest chip's, an M1 with 7 cores.
    fn default() -> Self {
        Self { flops: 0.5e12, bytes: 30e9 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chip::CHIPS;

    #[test]
    fn no_chip_of_the_table_is_slower_than_the_default() {
        let slowest = Pace::default();
        for chip in CHIPS {
            for variant in chip.variants {
                let pace = Pace::of(&chip.gpu(variant), Products::SimdgroupMatrix);
                assert!(pace.flops >= slowest.flops && pace.bytes >= slowest.bytes, "{pace:?}");
            }
        }
    }
}
