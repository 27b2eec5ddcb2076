//! A kernel that faults on an NVIDIA GPU; reported as skipped where there is none. Alone in its program, which cannot use
//! the GPU afterwards. With `LILY_LAUNCH_BY_LAUNCH=1` the launch has to be named.

use lily_cuda::compiler::Compiler;
use lily_cuda::{CudaDevice, CudaError, CudaOptions};
use lily_tests::gpu;

#[test]
fn a_fault_is_reported_and_nothing_hangs() {
    let options = CudaOptions {
        nvrtc: std::env::var_os("LILY_NVRTC").map(Into::into),
        cache: Compiler::default_cache(),
        ..CudaOptions::default()
    };
    match CudaDevice::new(options) {
        Ok(device) => {
            println!("on {}", device.info().name);
            let by_name = std::env::var_os("LILY_LAUNCH_BY_LAUNCH").is_some();
            gpu::a_fault_is_reported("generic", Box::new(device), by_name);
        }
        Err(error @ (CudaError::NoDriver | CudaError::NoGpu { .. })) => {
            println!("skipped: {error}")
        }
        Err(error) => panic!("{error}"),
    }
}
