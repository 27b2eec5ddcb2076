//! The command line's contract, held by the real program.

#![allow(clippy::unwrap_used)]

mod failures;
mod files;
mod output;
mod results;
mod support;
