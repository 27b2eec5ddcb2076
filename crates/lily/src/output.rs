//! Standard output and standard error. Either may be closed early by whoever reads them; that is no
//! reason to panic.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Error, Result, bail};
use lily_model::Printable;
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

/// An empty file in place of what may be there.
///
/// # Errors
/// It cannot be written; something else than a file is there, where a pipe would wait for its reader; or the name is `-`,
/// by which people mean standard output.
pub fn create_file(path: &Path) -> Result<File> {
    if path == Path::new("-") {
        bail!("need the name of a file, found -, which is not standard output here; name a file");
    }
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        bail!("cannot write {}: it is there and no regular file; name another", path.display());
    }
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a line for people to standard error; nobody has to read it. What could steer a terminal,
/// such as an escape code in a file's text, is spelled out.
pub fn note(text: impl fmt::Display) {
    note_within("", text, "");
}

/// The same between two codes for the terminal.
pub fn note_within(before: &str, text: impl fmt::Display, after: &str) {
    let text = text.to_string();
    let _ = writeln!(io::stderr(), "{before}{}{after}", Printable(&text));
}

/// Says why a command failed.
pub fn note_failure(error: &Error) {
    note(format_args!("lily: {}", sentence(error)));
}

/// An error with its causes. Many messages hold their cause already: it is not said twice.
pub fn sentence(error: &Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text += ": ";
            text += &cause;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_the_message_holds_is_not_said_twice() {
        let cause = || io::Error::other("is a directory");
        let error = Error::new(cause()).context("`x` cannot be read (is a directory); look at it");
        assert_eq!(sentence(&error), "`x` cannot be read (is a directory); look at it");
        let error = Error::new(cause()).context("cannot read x").context("no model");
        assert_eq!(sentence(&error), "no model: cannot read x: is a directory");
    }
}
