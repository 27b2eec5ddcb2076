//! What a person may type in a chat: messages of one or more lines, and commands.

/// Encloses a text of several lines.
const BLOCK: &str = "\"\"\"";

/// One input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A message.
    Text(String),
    /// A command without its slash, and what follows it.
    Command(String, String),
}

impl Input {
    /// Whether more lines belong to the input: its last line ends in a backslash, or a block that
    /// began with three quotation marks has not ended.
    pub fn is_open(text: &str) -> bool {
        match text.trim_start().strip_prefix(BLOCK) {
            Some(inside) => !inside.trim_end().ends_with(BLOCK),
            None => text.ends_with('\\'),
        }
    }

    /// The meaning of lines that were typed; `None` if nothing is left of them. A slash makes a
    /// command, two make a message that begins with one.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(inside) = text.trim_start().strip_prefix(BLOCK) {
            let inside = inside.trim_end();
            let inside = inside.strip_suffix(BLOCK).unwrap_or(inside).trim_matches('\n');
            return (!inside.trim().is_empty()).then(|| Self::Text(inside.to_owned()));
        }
        let text = text.replace("\\\n", "\n");
        let text = text.strip_suffix('\\').unwrap_or(&text).trim();
        match text.strip_prefix('/') {
            Some(rest) if rest.starts_with('/') => Some(Self::Text(rest.to_owned())),
            Some(rest) => {
                let (name, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                Some(Self::Command(name.to_owned(), rest.trim().to_owned()))
            }
            None => (!text.is_empty()).then(|| Self::Text(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Option<Input> {
        Some(Input::Text(text.into()))
    }

    #[test]
    fn a_backslash_and_a_block_ask_for_more_lines() {
        for (input, open) in [
            ("one", false),
            ("one\\", true),
            ("one\\\ntwo", false),
            ("\"\"\"", true),
            ("\"\"\"\nkeep \\\nlines", true),
            ("\"\"\"\nkeep\n\"\"\"", false),
            ("say \"\"\"", false),
        ] {
            assert_eq!(Input::is_open(input), open, "{input:?}");
        }
        assert_eq!(Input::parse("one\\\ntwo"), text("one\ntwo"));
        assert_eq!(Input::parse("\"\"\"\n/a\n\nb \\\n\"\"\""), text("/a\n\nb \\"));
        assert_eq!(Input::parse("\"\"\"\"\"\""), None);
    }

    #[test]
    fn a_slash_makes_a_command_and_two_a_text() {
        let command = |name: &str, rest: &str| Some(Input::Command(name.into(), rest.into()));
        assert_eq!(Input::parse(" /system  Be brief. "), command("system", "Be brief."));
        assert_eq!(Input::parse("/reset"), command("reset", ""));
        assert_eq!(Input::parse("//etc is a folder"), text("/etc is a folder"));
        assert_eq!(Input::parse("1/2"), text("1/2"));
    }
}
