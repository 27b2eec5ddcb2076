//! Apple GPUs as a device.
//!
//! Most of it needs no Mac. [`MetalDevice`] turns plans into [`encoder::Command`]s: what is bound where, what
//! is dispatched, where barriers and fences stand, when command buffers are committed. A [`Host`] carries them out,
//! one Metal call for each. The host for Apple GPUs is built on macOS only; other hosts stand in for it where
//! there is none, so that everything up to Metal itself runs, and is checked, on any machine.

#![deny(unsafe_code)]

pub mod archive;
pub mod arena;
pub mod budget;
pub mod chip;
mod device;
pub mod encoder;
mod fetch;
#[cfg(target_os = "macos")]
#[allow(unsafe_code)]
pub mod host;
pub mod idle;
mod machine;
pub mod predict;
mod upload;

pub use device::{MetalDevice, MetalOptions};
pub use machine::{Failure, Host, HostError, NAME, Wanted};
