//! The lily program.
fn main() {}
