//! What people see: dimmed thoughts and notes on a terminal, plain text in a pipe.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use crate::output;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";
const CLEAR_LINE: &str = "\r\x1b[K";

/// Standard output and standard error while an answer is given.
pub struct Screen {
    /// Standard output is a terminal, standard error is one.
    out_terminal: bool,
    err_terminal: bool,
    colour: bool,
    show_thought: bool,
    /// A line about the prompt stands on the terminal.
    progress: bool,
    /// A thought was shown, and no answer since.
    in_thought: bool,
    /// Whether the last character shown ended a line.
    at_line_start: bool,
}

impl Screen {
    /// A screen. A thought is dimmed on a terminal; elsewhere it stands between `<think>` and
    /// `</think>`.
    pub fn new(hide_thinking: bool) -> Self {
        let out_terminal = io::stdout().is_terminal();
        // NO_COLOR counts unless it is empty, see no-color.org.
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            out_terminal,
            err_terminal: io::stderr().is_terminal(),
            colour: wanted,
            show_thought: !hide_thinking,
            progress: false,
            in_thought: false,
            at_line_start: true,
        }
    }

    /// Says how much of a long prompt is read; the answer takes its place.
    pub fn prefilled(&mut self, done: usize, total: usize) -> io::Result<()> {
        if !(self.out_terminal && self.err_terminal && self.colour) || done >= total {
            return Ok(());
        }
        self.progress = true;
        let mut err = io::stderr().lock();
        write!(err, "{CLEAR_LINE}{DIM}read {done} of {total} tokens{PLAIN}")?;
        err.flush()
    }

    /// Shows a piece of the thought, of the answer, or of both.
    pub fn text(&mut self, reasoning: &str, content: &str) -> io::Result<()> {
        if std::mem::take(&mut self.progress) {
            write!(io::stderr().lock(), "{CLEAR_LINE}")?;
        }
        let mut out = io::stdout().lock();
        if self.show_thought && !reasoning.is_empty() {
            let begins = !std::mem::replace(&mut self.in_thought, true);
            let text = self.safe(reasoning);
            match self.colour && self.out_terminal {
                true => write!(out, "{DIM}{text}{PLAIN}")?,
                false => write!(out, "{}{text}", if begins { "<think>\n" } else { "" })?,
            }
            self.at_line_start = reasoning.ends_with('\n');
        }
        if !content.is_empty() {
            if std::mem::take(&mut self.in_thought) {
                let end = if self.colour && self.out_terminal { "" } else { "</think>\n" };
                writeln!(out, "{}{end}", if self.at_line_start { "" } else { "\n" })?;
            }
            write!(out, "{}", self.safe(content))?;
            self.at_line_start = content.ends_with('\n');
        }
        out.flush()
    }

    /// Ends the answer's last line.
    pub fn end(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.progress) {
            write!(io::stderr().lock(), "{CLEAR_LINE}")?;
        }
        self.in_thought = false;
        if !std::mem::replace(&mut self.at_line_start, true) {
            writeln!(io::stdout().lock())?;
        }
        Ok(())
    }

    /// Prints a line for people to standard error, dimmed on a terminal.
    pub fn note(&self, text: &str) {
        if self.err_terminal && self.colour {
            output::note_within(DIM, text, PLAIN);
        } else {
            output::note(text);
        }
    }

    /// Prints text of several lines, such as an answer to a command.
    pub fn say(&self, text: &str) -> anyhow::Result<()> {
        output::print(format_args!("{}\n", self.safe(text)))
    }

    fn safe<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.out_terminal { without_steering(text) } else { Cow::Borrowed(text) }
    }
}

/// A model may write any character. Those that steer a terminal do not reach one, line ends and tabs
/// apart; a pipe gets the text as it is.
fn without_steering(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace(steers, "\u{fffd}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_text_does_not_steer_a_terminal() {
        let plain = "größe\t模型\n\u{1f600}";
        assert!(matches!(without_steering(plain), Cow::Borrowed(same) if same == plain));
        assert_eq!(without_steering("a\u{1b}]0;t\u{7}b\rc\u{9b}d"), "a�]0;t�b�c�d");
    }
}
