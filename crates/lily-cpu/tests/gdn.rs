//! Claims about the Gated DeltaNet kernels together, on the CPU device.

use lily_cpu::{CpuDevice, CpuOptions, Numerics};
use lily_kernels::gdn::claims;
use lily_plan::DeviceError;

fn device() -> CpuDevice {
    CpuDevice::new(CpuOptions { numerics: Numerics::Exact, threads: 2, ..CpuOptions::default() })
}

#[test]
fn prefill_agrees_with_decode() -> Result<(), DeviceError> {
    claims::prefill_agrees_with_decode(&mut device())
}

#[test]
fn chunk_form_agrees_with_the_recurrence() -> Result<(), DeviceError> {
    claims::chunk_form_agrees_with_the_recurrence(&mut device())
}
