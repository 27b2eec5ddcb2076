//! The lily program.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod model;

use std::process::ExitCode;

use clap::Parser;

use args::{Command, Program};

/// Exit code of a command that failed; usage errors exit with 2.
const FAILURE: u8 = 1;

fn main() -> ExitCode {
    let program = Program::parse();
    let result = match &program.command {
        Command::Run(args) => commands::run::run(args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Eval(args) => commands::eval::run(args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Synth(args) => commands::synth::run(args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lily: {error:#}");
            ExitCode::from(FAILURE)
        }
    }
}
