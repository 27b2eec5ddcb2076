//! Claims about the Gated DeltaNet kernels together, on the MSL test device.

#![cfg(target_os = "linux")]

use lily_kernels::gdn::claims;
use lily_msl_test::{MslOptions, MslTestDevice};
use lily_plan::DeviceError;

fn device() -> MslTestDevice {
    MslTestDevice::new(MslOptions::default())
}

#[test]
fn prefill_agrees_with_decode() -> Result<(), DeviceError> {
    claims::prefill_agrees_with_decode(&mut device())
}

#[test]
fn chunk_form_agrees_with_the_recurrence() -> Result<(), DeviceError> {
    claims::chunk_form_agrees_with_the_recurrence(&mut device())
}
