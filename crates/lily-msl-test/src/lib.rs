//! The MSL test device: it runs the Metal texts of kernels on any CPU, and checks what a GPU would not.
//!
//! A text is translated ([`lily_kernels::gpu::translate`]), compiled by clang and run over the launch's
//! grid. Every thread is a fiber; a simd operation is a rendezvous of 32 lanes. Two builds of a kernel:
//!
//! - *fast*: Metal's address spaces are clang's, so pointers to different memory do not convert. Buffers
//!   end at unmapped pages. Divergent barriers and simd operations are found in any build.
//! - *checked*: every access is checked for bounds, races, alignment, and threadgroup memory never
//!   written; about 20 times slower.
//!
//! Compiled kernels are kept in a folder and found by the hash of their text: see [`cache_folder`]. The
//! device is for tests; it needs Linux and clang 19 or later. It runs on x86-64; its fiber switch for AArch64
//! assembles and has not been run yet.

#![deny(unsafe_code)]

mod cache;
mod compiler;
mod device;
#[allow(unsafe_code)]
mod ffi;
#[allow(unsafe_code)]
mod memory;
mod symbols;

pub use cache::cache_folder;
pub use compiler::{Build, CompileError, compile};
pub use device::{MslOptions, MslTestDevice};
pub use ffi::{Binding, Failure, Geometry, Kernel, Order};
pub use memory::Block;
