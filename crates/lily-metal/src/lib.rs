//! Apple GPUs as a device.

#![deny(unsafe_code)]

pub mod budget;
pub mod chip;
pub mod predict;
