//! Patterns of JSON schema as expressions for whole texts.

use llguidance::regex_to_lark;

/// An expression for the texts in which a pattern of JSON schema is found, as grammars write it
/// between slashes. `None` for a pattern whose alternatives have anchors of their own, and for one
/// that ends in the middle of an escape.
pub(crate) fn whole(pattern: &str) -> Option<String> {
    if ends_escaped(pattern) {
        return None;
    }
    let (head, pattern) = match pattern.strip_prefix('^') {
        Some(rest) => ("", rest),
        None => ("(?s:.*)", pattern),
    };
    let (pattern, tail) = match pattern.strip_suffix('$') {
        Some(rest) if !ends_escaped(rest) => (rest, ""),
        _ => (pattern, "(?s:.*)"),
    };
    let has_anchors = head.is_empty() || tail.is_empty();
    if (has_anchors && has_alternatives(pattern)) || has_inner_anchors(pattern) {
        return None;
    }
    Some(format!("{head}({}){tail}", regex_to_lark(pattern, "dw")))
}

/// Whether the last character escapes one that is not there.
pub(crate) fn ends_escaped(text: &str) -> bool {
    text.bytes().rev().take_while(|&b| b == b'\\').count() % 2 == 1
}

/// Whether a `|` stands outside of all groups.
fn has_alternatives(pattern: &str) -> bool {
    plain(pattern).any(|(c, depth)| c == '|' && depth == 0)
}

fn has_inner_anchors(pattern: &str) -> bool {
    plain(pattern).any(|(c, _)| c == '^' || c == '$')
}

/// Characters that are neither escaped nor in a class, with the groups that they stand in.
fn plain(pattern: &str) -> impl Iterator<Item = (char, usize)> {
    let (mut escaped, mut in_class, mut depth) = (false, false, 0usize);
    pattern.chars().filter_map(move |c| {
        if std::mem::take(&mut escaped) {
            return None;
        }
        match c {
            '\\' => {
                escaped = true;
                return None;
            }
            '[' => in_class = true,
            ']' => in_class = false,
            _ if in_class => return None,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => return Some((c, depth)),
        }
        None
    })
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
