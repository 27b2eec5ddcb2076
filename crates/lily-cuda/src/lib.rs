//! NVIDIA GPUs as a device.
//!
//! The Metal texts of `lily-kernels` are translated to CUDA, compiled by NVRTC ([`compiler`]) and recorded
//! plan by plan into graphs ([`CudaDevice`]). Neither the driver nor NVRTC is needed to build or start
//! lily: both are loaded when a device is opened, and what is missing is named.

#![deny(unsafe_code)]

pub mod archive;
pub mod bandwidth;
pub mod compiler;
mod contents;
mod device;
#[allow(unsafe_code)]
mod driver;
mod error;
mod failure;
mod fetch;
#[allow(unsafe_code)]
mod nvrtc;
mod upload;

pub use device::{CHUNK, CudaDevice, CudaOptions, FUSIONS, PRECISION};
pub use driver::DeviceInfo;
pub use error::CudaError;
