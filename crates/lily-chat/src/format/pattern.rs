//! Expressions in the syntax of Rust's `regex`: what lily says of wrong ones.

/// Whether the last character escapes one that is not there.
pub(crate) fn ends_escaped(text: &str) -> bool {
    text.bytes().rev().take_while(|&b| b == b'\\').count() % 2 == 1
}

/// What is wrong with an expression, from the library's words: its text drawn with a mark, then the reason.
pub fn fault(text: &str) -> Option<String> {
    let (before, drawing) = text.split_once("regex parse error:")?;
    let reason = drawing.lines().find_map(|line| line.trim().strip_prefix("error: "))?;
    let named = before.split_once("invalid regex ").and_then(|(_, rest)| rest.rsplit_once(" (in "));
    Some(match named {
        Some((expression, _)) => format!("the expression is wrong: {reason}; it is {expression}"),
        None => format!("the expression is wrong: {reason}"),
    })
}
