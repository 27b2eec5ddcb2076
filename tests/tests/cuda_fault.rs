//! A kernel that faults on an NVIDIA GPU; reported as skipped where there is none. Alone in its program: a fault is felt
//! in all of a program's contexts on the GPU.

use lily_cuda::compiler::Compiler;
use lily_cuda::{CudaDevice, CudaError, CudaOptions};
use lily_tests::gpu;

#[test]
fn a_fault_ends_its_request_by_name_and_nothing_else() {
    let options = CudaOptions {
        nvrtc: std::env::var_os("LILY_NVRTC").map(Into::into),
        cache: Compiler::default_cache(),
        ..CudaOptions::default()
    };
    match CudaDevice::new(options) {
        Ok(device) => {
            println!("on {}", device.info().name);
            gpu::a_fault_ends_one_request("generic", Box::new(device));
        }
        Err(error @ (CudaError::NoDriver | CudaError::NoGpu { .. })) => {
            println!("skipped: {error}")
        }
        Err(error) => panic!("{error}"),
    }
}
