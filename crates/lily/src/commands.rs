//! One module for each command.

pub mod bench;
pub mod chat;
pub mod doctor;
pub mod eval;
pub mod inspect;
pub mod kernels;
pub mod plan;
#[cfg(feature = "pull")]
pub mod pull;
pub mod run;
mod run_ids;
pub mod serve;
pub mod shell;
pub mod synth;
