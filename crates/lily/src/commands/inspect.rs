//! `lily inspect`: what a checkpoint folder holds.

use std::process::ExitCode;

use anyhow::Result;
use lily_model::Inspection;

use crate::args::InspectArgs;
use crate::model::locate;
use crate::output::{print, print_json};

/// Runs the command; fails if the checkpoint does not run.
pub fn run(args: &InspectArgs) -> Result<ExitCode> {
    let inspection = Inspection::of(&locate(&args.model)?.folder);
    if args.json {
        print_json(&inspection)?;
    } else {
        print(&inspection)?;
    }
    Ok(if inspection.supported { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
