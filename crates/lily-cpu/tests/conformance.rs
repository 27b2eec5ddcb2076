//! Every kernel on the CPU device against its reference.

use lily_cpu::{CpuDevice, CpuOptions, Numerics};
use lily_kernels::conformance::{Bar, check_all};

#[test]
fn every_kernel_agrees_with_its_reference_in_f32() {
    let options = CpuOptions { numerics: Numerics::Exact, threads: 2, shuffle: None };
    check_all(Bar::Exact, || Box::new(CpuDevice::new(options)));
}

#[test]
fn every_kernel_agrees_with_its_reference_with_8_bit_inputs() {
    let options = CpuOptions { numerics: Numerics::Int8, threads: 2, shuffle: None };
    check_all(Bar::Int8, || Box::new(CpuDevice::new(options)));
}
