//! The lily program.

#![forbid(unsafe_code)]

mod answer;
mod args;
mod commands;
mod device;
mod interrupt;
mod model;
mod output;
mod terminal;

use std::process::ExitCode;

use clap::Parser;

use args::{Command, Program};
use output::{ReaderLeft, note};

/// Exit code of a command that failed; usage errors exit with 2.
const FAILURE: u8 = 1;

fn main() -> ExitCode {
    let program = Program::parse();
    let result = match &program.command {
        Command::Run(args) => commands::run::run(args),
        Command::Chat(args) => commands::chat::run(args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Eval(args) => commands::eval::run(args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Synth(args) => commands::synth::run(args),
        #[cfg(feature = "pull")]
        Command::Pull(args) => commands::pull::run(args),
        Command::Completions(args) => commands::shell::completions(args),
        Command::Man(args) => commands::shell::man(args),
    };
    match result {
        Ok(code) => code,
        Err(error) if error.is::<ReaderLeft>() => ExitCode::SUCCESS,
        Err(error) => {
            note(format_args!("lily: {error:#}"));
            ExitCode::from(FAILURE)
        }
    }
}
