//! The command line's contract, held by the real program.

#![allow(clippy::unwrap_used)]

mod doctor;
mod failures;
mod files;
mod kernels;
mod output;
mod results;
mod scripts;
mod support;
