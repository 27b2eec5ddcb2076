//! What a person types, or a pipe sends.

use std::io::{self, BufRead as _, IsTerminal as _};

use anyhow::{Context, Result};
use lily_chat::Input;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Editor, Helper};

const PROMPT: &str = "> ";

/// Where input comes from.
pub enum Lines {
    /// A terminal, with line editing and history.
    Terminal(Box<Editor<LineHelper, MemHistory>>),
    /// A pipe or a file.
    Pipe,
}

impl Lines {
    /// A line editor if both ends are a terminal.
    ///
    /// # Errors
    /// The terminal cannot be set up.
    pub fn new() -> Result<Self> {
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Ok(Self::Pipe);
        }
        let config = Config::builder().history_ignore_dups(true)?.build();
        let history = MemHistory::with_config(&config);
        let mut editor = Editor::with_history(config, history)
            .context("cannot set up line editing; chat through a pipe instead")?;
        editor.set_helper(Some(LineHelper));
        Ok(Self::Terminal(Box::new(editor)))
    }

    /// Whether a person types.
    pub fn is_interactive(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// The next input that is not empty; `None` at the end.
    ///
    /// # Errors
    /// Input cannot be read.
    pub fn next(&mut self) -> Result<Option<Input>> {
        loop {
            let text = match self {
                Self::Pipe => read_pipe()?,
                Self::Terminal(editor) => match editor.readline(PROMPT) {
                    Ok(text) => Some(text),
                    // The line is dropped, and a new one begins.
                    Err(ReadlineError::Interrupted) => continue,
                    Err(ReadlineError::Eof) => None,
                    Err(error) => return Err(error).context("cannot read from the terminal"),
                },
            };
            let Some(text) = text else { return Ok(None) };
            if text.trim().is_empty() {
                continue;
            }
            if let Self::Terminal(editor) = self {
                editor.add_history_entry(text.as_str())?;
            }
            if let Some(line) = Input::parse(&text) {
                return Ok(Some(line));
            }
        }
    }
}

/// Lines from standard input until they are a whole input.
fn read_pipe() -> Result<Option<String>> {
    let mut text = String::new();
    loop {
        let before = text.len();
        io::stdin().lock().read_line(&mut text).context("cannot read standard input")?;
        let ended = text.len() == before;
        while text.ends_with(['\n', '\r']) && text.len() > before {
            text.pop();
        }
        if ended {
            return Ok((!text.is_empty()).then_some(text));
        }
        if !Input::is_open(&text) {
            return Ok(Some(text));
        }
        text.push('\n');
    }
}

/// Lets Enter begin a new line while an input is open.
pub struct LineHelper;

impl Helper for LineHelper {}
impl Highlighter for LineHelper {}
impl Hinter for LineHelper {
    type Hint = String;
}
impl Completer for LineHelper {
    type Candidate = String;
}
impl Validator for LineHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match Input::is_open(context.input()) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}
