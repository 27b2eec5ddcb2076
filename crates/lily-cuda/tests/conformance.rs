//! Every kernel on an NVIDIA GPU against its reference; reported as skipped where there is none.
//!
//! `LILY_KERNELS=topk,head` runs these kernels alone.

use lily_cuda::compiler::Compiler;
use lily_cuda::{CudaDevice, CudaError, CudaOptions};
use lily_kernels::conformance::{
    Bar, Case, cases_at, cases_in, failures_on, named_cases, real_shape,
};

/// Checks cases on one device, so that a kernel is compiled once.
fn check_all(cases: Vec<Case>) {
    let mut device = match CudaDevice::new(CudaOptions {
        nvrtc: std::env::var_os("LILY_NVRTC").map(Into::into),
        cache: Compiler::default_cache(),
        ..CudaOptions::default()
    }) {
        Ok(device) => device,
        Err(error @ (CudaError::NoDriver | CudaError::NoGpu { .. })) => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    println!("{} cases on {}", cases.len(), device.info().name);
    let failures = failures_on(&mut device, &cases, Bar::Bf16);
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_kernel_agrees_with_its_reference() {
    check_all(cases_in(Bar::Bf16.precision(), named_cases));
}

/// The references are plain loops over 25 million weights: minutes.
#[test]
#[ignore = "takes minutes, most of them for the references: scripts/check-full long"]
fn every_kernel_agrees_with_its_reference_at_the_real_models_shapes() {
    let build = || cases_at(vec![real_shape()], named_cases);
    check_all(cases_in(Bar::Bf16.precision(), build));
}
