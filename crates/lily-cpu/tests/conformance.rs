//! Every kernel on the CPU device against its reference.

use lily_cpu::{CpuDevice, CpuOptions, Numerics};
use lily_kernels::conformance::{Bar, check_all, failures_on, random_cases};

#[test]
fn every_kernel_agrees_with_its_reference_in_f32() {
    let options = CpuOptions { numerics: Numerics::Exact, threads: 2, ..CpuOptions::default() };
    check_all(Bar::Exact, || Box::new(CpuDevice::new(options)));
}

#[test]
fn every_kernel_agrees_with_its_reference_with_8_bit_inputs() {
    let options = CpuOptions { numerics: Numerics::Int8, threads: 2, ..CpuOptions::default() };
    check_all(Bar::Int8, || Box::new(CpuDevice::new(options)));
}

/// One case of each kernel at dimensions that follow from a seed; GPUs run 64 seeds.
#[test]
fn every_kernel_agrees_with_its_reference_at_random_dimensions() {
    let options = CpuOptions { numerics: Numerics::Exact, threads: 2, ..CpuOptions::default() };
    let mut device = CpuDevice::new(options);
    for seed in 0..16 {
        let cases = random_cases(Bar::Exact.precision(), seed);
        let failures = failures_on(&mut device, &cases, Bar::Exact);
        assert!(failures.is_empty(), "seed {seed}:\n{}", failures.join("\n"));
    }
}
