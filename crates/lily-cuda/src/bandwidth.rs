//! How fast a GPU reads its memory, by a kernel that does nothing else.

use std::sync::Arc;

use lily_kernels::gpu::{Language, Source};

use crate::driver::{Function, Gpu, KernelLaunch};
use crate::error::CudaError;

/// Name of the kernel in the cache.
pub const KERNEL: &str = "read_memory";

/// Bytes that are read: far more than an L2 cache holds, and enough that the start of a launch is no part of it. On an
/// H200, 1 GiB reads at 4.3 TB/s and 4 GiB at 4.55 TB/s, whatever the number of blocks above 4 for a multiprocessor.
const BYTES: u64 = 4 << 30;
/// Threads of a block.
const THREADS: u32 = 256;
/// Vectors that a thread has in flight.
const READS: usize = 8;
/// Blocks for each multiprocessor.
const BLOCKS: u32 = 8;
/// Timed passes; the fastest counts.
const PASSES: usize = 10;

/// The kernel.
pub fn source() -> Source {
    let text = format!("#define READS {READS}\n{}", include_str!("bandwidth.cu"));
    Source { text, function: KERNEL, language: Language::Cuda }
}

/// Bytes read in a second: the fastest of some passes over memory that no cache holds, or over a quarter of what is
/// free.
pub(crate) fn read_bandwidth(gpu: &Arc<Gpu>, function: Function) -> Result<f64, CudaError> {
    let bytes = (gpu.memory()?.0 / 4).min(BYTES) as usize & !15;
    let (mut memory, mut out) = (gpu.allocate(bytes)?, gpu.allocate(16)?);
    memory.fill(0x11)?;
    out.fill(0)?;
    let launch = KernelLaunch {
        function,
        grid: [gpu.info().multiprocessors * BLOCKS, 1, 1],
        threads: THREADS,
        shared: 0,
        args: (bytes as u64 / 16).to_le_bytes().to_vec(),
        pointers: vec![memory.address(), out.address()],
    };
    let mut fastest = f32::INFINITY;
    for pass in 0..=PASSES {
        let start = gpu.mark()?;
        gpu.launch(&launch, false)?;
        let milliseconds = gpu.mark()?.since(&start)?;
        // The first pass warms up.
        if pass > 0 {
            fastest = fastest.min(milliseconds);
        }
    }
    Ok(bytes as f64 / f64::from(fastest) * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiler::{Architecture, Compiler, Resources};

    /// Needs NVRTC: skipped where it is not found, unless `LILY_NVRTC` names it.
    #[test]
    fn the_kernel_compiles_without_spills_and_its_blocks_fit_side_by_side() {
        let library = std::env::var_os("LILY_NVRTC").map(std::path::PathBuf::from);
        let compiler = Compiler::new(library.clone(), None);
        match compiler.nvrtc_version() {
            Err(error @ CudaError::NoNvrtc { .. }) if library.is_none() => {
                println!("skipped: {error}");
                return;
            }
            version => drop(version.expect("NVRTC loads")),
        }
        for architecture in [Architecture::of(8, 0), Architecture::of(9, 0)] {
            let cubin = compiler.compile(KERNEL, &source(), &architecture).expect("it compiles");
            let used = Resources::parse(&cubin.report).expect("the assembler reports");
            assert_eq!((used.spill_bytes, used.shared_bytes), (0, 0), "{used:?}");
            // A multiprocessor has 65,536 registers, and at least half of the blocks have to be there at once.
            assert!(used.registers * THREADS * BLOCKS / 2 <= 65_536, "{used:?}");
        }
    }
}
