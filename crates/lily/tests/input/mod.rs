//! Commands that are given their standard input.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// Runs a command to its end; `input` is all that it can read.
pub fn with_input(command: &mut Command, input: &str) -> Output {
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    // A program that has ended reads nothing.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}
