//! The lily program.

#![forbid(unsafe_code)]

mod answer;
mod args;
mod commands;
mod device;
mod functions;
mod interrupt;
mod model;
mod output;
mod terminal;

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Parser;
use signal_hook::consts::SIGPIPE;

use args::{Command, ManArgs, Program};
use output::{ReaderLeft, note_failure, written};

/// Exit code of a command that failed; usage errors exit with 2.
const FAILURE: u8 = 1;
/// Exit code of a command whose reader went away: what shells report for a program that the signal
/// for it ended.
const READER_LEFT: u8 = 128 + SIGPIPE as u8;

fn main() -> ExitCode {
    let result = match Program::try_parse() {
        Ok(program) => run(&program.command),
        Err(error) => show(&error),
    };
    match result {
        Ok(code) => code,
        Err(error) if error.is::<ReaderLeft>() => ExitCode::from(READER_LEFT),
        Err(error) => match error.downcast_ref().map(show) {
            Some(Ok(code)) => code,
            _ => {
                note_failure(&error);
                ExitCode::from(FAILURE)
            }
        },
    }
}

/// Runs a command.
fn run(command: &Command) -> Result<ExitCode> {
    command.check_device()?;
    // What these have to say goes elsewhere.
    let silent = match command {
        Command::Serve(_) | Command::Man(ManArgs { out: Some(_) }) => true,
        // The download lies on the disk whether or not its report is read.
        #[cfg(feature = "pull")]
        Command::Pull(args) => !args.json,
        _ => false,
    };
    if !silent {
        check_stdout()?;
    }
    match command {
        Command::Run(args) => commands::run::run(args),
        Command::Chat(args) => commands::chat::run(args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Eval(args) => commands::eval::run(args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Kernels(args) => commands::kernels::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Synth(args) => commands::synth::run(args),
        #[cfg(feature = "pull")]
        Command::Pull(args) => commands::pull::run(args),
        Command::Completions(args) => commands::shell::completions(args),
        Command::Man(args) => commands::shell::man(args),
    }
}

/// Shows an error of usage, or the help that was asked for.
fn show(error: &clap::Error) -> Result<ExitCode> {
    if error.use_stderr() {
        // Nobody has to read it; the status says the same.
        let _ = error.print();
    } else {
        check_stdout()?;
        written(error.print().and_then(|()| io::stdout().flush()))?;
    }
    Ok(ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(FAILURE)))
}

/// Refuses to work for a closed standard output.
fn check_stdout() -> Result<()> {
    ensure!(
        !lily_stdio::stdout_was_closed(),
        "standard output is closed and the result would be lost, need an open one; use >/dev/null \
         to drop it"
    );
    Ok(())
}
