//! lily-nano on every device: held to the bars of trained weights.

use lily_cpu::Numerics;
use lily_cuda::compiler::Compiler;
use lily_cuda::{CudaDevice, CudaError, CudaOptions};
use lily_tests::cpu;
use lily_tests::nano::{BF16, INT8, evaluated, stays_within};

#[test]
fn every_logit_of_the_exact_processor_is_the_references() {
    let found = evaluated(cpu(Numerics::Exact), 300);
    assert!(found.positions > 50 && found.max_abs <= 1e-3, "{found:?}");
    assert_eq!(found.top1, 1.0, "{found:?}");
}

#[test]
fn eight_bits_stay_within_the_bar() {
    stays_within(&INT8, cpu(Numerics::Int8), usize::MAX);
}

#[cfg(target_os = "linux")]
mod metal_texts {
    use lily_msl_test::{MslOptions, MslTestDevice};
    use lily_plan::Device;
    use lily_tests::nano::{BF16, Bar, stays_within};

    fn msl() -> Box<dyn Device> {
        Box::new(MslTestDevice::new(MslOptions { workers: 2, ..MslOptions::default() }))
    }

    /// Three conversations: the device is made for tests and slow. Of so few positions one may have another token, and
    /// what rounding does to their likelihoods does not even out.
    #[test]
    fn stay_within_the_bar_over_a_few_conversations() {
        stays_within(&Bar { top1: 0.97, perplexity: 0.002 }, msl(), 100);
    }

    #[test]
    #[ignore = "minutes; scripts/check-full long"]
    fn stay_within_the_bar() {
        stays_within(&BF16, msl(), usize::MAX);
    }
}

/// Reported as skipped where there is no NVIDIA GPU.
#[test]
fn an_nvidia_gpu_stays_within_the_bar() {
    let options = CudaOptions {
        nvrtc: std::env::var_os("LILY_NVRTC").map(Into::into),
        cache: Compiler::default_cache(),
        ..CudaOptions::default()
    };
    match CudaDevice::new(options) {
        Ok(device) => stays_within(&BF16, Box::new(device), usize::MAX),
        Err(error @ (CudaError::NoDriver | CudaError::NoGpu { .. })) => {
            println!("skipped: {error}")
        }
        Err(error) => panic!("{error}"),
    }
}
