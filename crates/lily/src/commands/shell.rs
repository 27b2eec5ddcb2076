//! `lily completions` and `lily man`, both from the definition of the command line.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory as _;

use crate::args::{CompletionsArgs, ManArgs, Program};
use crate::output::print;

/// Prints a completion script.
pub fn completions(args: &CompletionsArgs) -> Result<ExitCode> {
    // Written at once: the generator itself panics when its reader goes away.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Program::command(), "lily", &mut script);
    print(String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the page of the program, or writes those of all commands.
pub fn man(args: &ManArgs) -> Result<ExitCode> {
    let program = Program::command();
    if let Some(out) = &args.out {
        std::fs::create_dir_all(out)
            .and_then(|()| clap_mangen::generate_to(program, out))
            .with_context(|| format!("cannot write manual pages to {}", out.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(program).render(&mut page)?;
    print(String::from_utf8_lossy(&page))?;
    Ok(ExitCode::SUCCESS)
}
