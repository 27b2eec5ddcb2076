//! Apple GPUs as a device.

#![deny(unsafe_code)]
