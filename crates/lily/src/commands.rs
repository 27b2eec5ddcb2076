//! One module for each command.

pub mod eval;
pub mod inspect;
pub mod plan;
pub mod run;
pub mod synth;
