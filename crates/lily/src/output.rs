//! Standard output and standard error. Either may be closed early by whoever reads them; that is no
//! reason to panic.

use std::fmt;
use std::io::{self, Write};

use anyhow::{Context, Result};
use serde::Serialize;

/// The reader of standard output went away: the work ends, without a message.
#[derive(Debug)]
pub struct ReaderLeft;

impl fmt::Display for ReaderLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the reader of standard output went away")
    }
}

impl std::error::Error for ReaderLeft {}

/// Writes to standard output at once.
///
/// # Errors
/// [`ReaderLeft`], or what the system says, such as a full disk.
pub fn print(text: impl fmt::Display) -> Result<()> {
    let mut out = io::stdout().lock();
    written(write!(out, "{text}").and_then(|()| out.flush()))
}

/// The outcome of writing to standard output.
///
/// # Errors
/// As [`print()`].
pub fn written(result: io::Result<()>) -> Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(ReaderLeft.into()),
        result => result.context("cannot write to standard output"),
    }
}

/// Prints the one JSON object of a command.
///
/// # Errors
/// As [`print()`].
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print(format_args!("{}\n", serde_json::to_string(value)?))
}

/// Writes a line for people to standard error; nobody has to read it.
pub fn note(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{text}");
}
