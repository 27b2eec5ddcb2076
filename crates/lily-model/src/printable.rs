//! Text from files and paths in lines for people.

use std::fmt::{self, Write};

/// A text in which nothing steers a terminal or starts a line: control characters, line separators
/// and marks that turn the direction of writing are written as escapes, such as `\u{1b}`. All other
/// characters, of any language, stay as they are.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if steers(c) {
                write!(out, "{}", c.escape_default())?;
            } else {
                out.write_char(c)?;
            }
        }
        Ok(())
    }
}

fn steers(c: char) -> bool {
    let separates_or_turns =
        matches!(c, '\u{2028}'..='\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || separates_or_turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_escaped_and_every_other_character_stays() {
        let shown = |text: &str| Printable(text).to_string();
        let plain = "größe 模型 \u{1f600} naïve e\u{301} عربي `x`";
        assert_eq!(shown(plain), plain);
        assert_eq!(shown("\u{1b}[31mred\u{7}\u{9b}0m"), "\\u{1b}[31mred\\u{7}\\u{9b}0m");
        assert_eq!(shown("a\r\nb\tc"), "a\\r\\nb\\tc");
        assert_eq!(shown("\u{202e}x\u{2029}"), "\\u{202e}x\\u{2029}");
    }
}
