//! One module for each command.

pub mod eval;
pub mod inspect;
pub mod plan;
pub mod run;
pub mod serve;
pub mod synth;

use anyhow::Result;
use serde::Serialize;

/// Prints the one JSON object of a command.
fn print_json(value: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}
