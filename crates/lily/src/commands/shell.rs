//! `lily completions` and `lily man`, both from the definition of the command line.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory as _;
use clap_mangen::Man;

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
    let mut program = Program::command().disable_help_subcommand(true);
    program.build();
    match &args.out {
        None => print(page(&program)?)?,
        Some(out) => std::fs::create_dir_all(out)
            .and_then(|()| write_pages(&program, out))
            .with_context(|| format!("cannot write manual pages to {}", out.display()))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages of a command and of those below it.
fn write_pages(command: &clap::Command, folder: &Path) -> io::Result<()> {
    let name = Man::new(command.clone()).get_filename();
    std::fs::write(folder.join(name), page(command)?)?;
    command.get_subcommands().try_for_each(|below| write_pages(below, folder))
}

/// The page of a command. What follows its options is one section without a name in `clap_mangen`, and begins with its
/// headings as text.
fn page(command: &clap::Command) -> io::Result<String> {
    let mut page = Vec::new();
    Man::new(command.clone())
        .source(concat!("lily ", env!("CARGO_PKG_VERSION")))
        .render(&mut page)?;
    let page = String::from_utf8_lossy(&page);
    let sections = page.lines().filter(|&line| line != ".SH EXTRA").map(|line| match line {
        "Example:" | "Examples:" => ".SH EXAMPLES",
        "Environment:" => ".SH ENVIRONMENT",
        line => line,
    });
    Ok(sections.map(|line| format!("{line}\n")).collect())
}
