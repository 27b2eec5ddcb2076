//! An expression for text in which some tags do not occur.
//!
//! `~/.*TAG.*/` would say the same, but the library knows no shortcut for it: each mask would take a walk
//! over the vocabulary.

use std::collections::BTreeSet;

use super::vocabulary::{CALL, CALL_END};

/// What no text of a call can hold: a parser may take it for the end of the value, or for a call.
pub(crate) const CLOSED_TO_VALUES: [&str; 3] = ["</parameter", CALL, CALL_END];

/// Texts without any of `tags`, as grammars write it between slashes. Each tag begins with `<` and has
/// no other one.
pub(crate) fn without(tags: &[&str]) -> String {
    // What may be the beginning of a tag.
    let begun: BTreeSet<&str> =
        tags.iter().flat_map(|tag| (1..tag.len()).map(|len| &tag[..len])).collect();
    let mut broken = Vec::new();
    for begin in &begun {
        // With none of these it goes on as a tag, or begins another one.
        let next = tags.iter().filter_map(|tag| tag.strip_prefix(begin)?.chars().next());
        let next: BTreeSet<char> = next.chain(['<']).collect();
        let next: String = next.into_iter().map(escaped).collect();
        broken.push(format!("{}[^{next}]", begin.chars().map(escaped).collect::<String>()));
    }
    let begun: Vec<String> =
        begun.iter().map(|begin| begin.chars().map(escaped).collect()).collect();
    let (begun, broken) = (begun.join("|"), broken.join("|"));
    format!("([^<]|({begun})*({broken}))*({begun})*")
}

/// A character as itself, also in a class.
fn escaped(c: char) -> String {
    match c {
        'a'..='z' | '_' | '<' | '>' => c.into(),
        c => format!("\\{c}"),
    }
}

/// Names between `<` and `>` in the text of a grammar, outside of its texts, expressions and
/// comments: tokens.
pub(crate) fn named_in(grammar: &str) -> impl Iterator<Item = &str> {
    let mut rest = grammar;
    std::iter::from_fn(move || {
        loop {
            let at = rest.find(['"', '/', '#', '<'])?;
            let (kind, behind) = (rest.as_bytes()[at], &rest[at + 1..]);
            let is_comment = kind == b'#' || kind == b'/' && behind.starts_with('/');
            let end = match kind {
                b'<' => behind.find('>'),
                _ if is_comment => behind.find('\n'),
                quote => closing(behind, quote),
            };
            let end = end.unwrap_or(behind.len());
            rest = behind.get(end + 1..).unwrap_or("");
            if kind == b'<' {
                return Some(&behind[..end]);
            }
        }
    })
}

/// Where a quote that is not escaped stands.
fn closing(text: &str, quote: u8) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let is_end = byte == quote && !escaped;
        escaped = byte == b'\\' && !escaped;
        is_end
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use llguidance::derivre::Regex;

    #[test]
    fn tokens_of_a_grammar_are_found_outside_of_its_texts() {
        let grammar = "start: \"<a> \\\" <b>\" <c> /<d>\\/<e>/ # <f>\n x: <[1-2,4]> // <g>\n<h";
        let names: Vec<&str> = named_in(grammar).collect();
        assert_eq!(names, ["c", "[1-2,4]", "h"]);
    }

    #[test]
    fn a_text_matches_if_no_tag_is_in_it() {
        let tags = CLOSED_TO_VALUES;
        let mut expression = Regex::new(&without(&tags)).unwrap();
        let parts =
            ["<", "</", "</p", "</paramete", "r", "<tool", "_call", ">", "</tool_call", "\n", "x"];
        let mut rounds = 0;
        for first in parts {
            for second in parts {
                for third in parts {
                    let text = format!("{first}{second}{third}");
                    let has_tag = tags.iter().any(|tag| text.contains(tag));
                    assert_eq!(expression.is_match(&text), !has_tag, "{text:?}");
                    rounds += usize::from(has_tag);
                }
            }
        }
        assert!(rounds > 10);
    }
}
