//! Every kernel on an NVIDIA GPU against its reference; reported as skipped where there is none.

use lily_cuda::compiler::Compiler;
use lily_cuda::{CudaDevice, CudaError, CudaOptions};
use lily_kernels::conformance::{Bar, check_all};

#[test]
fn every_kernel_agrees_with_its_reference() {
    let options = || CudaOptions {
        nvrtc: std::env::var_os("LILY_NVRTC").map(Into::into),
        cache: Compiler::default_cache(),
        ..CudaOptions::default()
    };
    match CudaDevice::new(options()) {
        Ok(device) => println!("on {}", device.info().name),
        Err(error @ (CudaError::NoDriver | CudaError::NoGpu { .. })) => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    }
    check_all(Bar::Bf16, || Box::new(CudaDevice::new(options()).expect("the GPU opens again")));
}
