//! One answer, streamed to the screen.

use std::io;
use std::ops::ControlFlow;
use std::time::Duration;

use lily_chat::{Event, FinishReason, MessageEvent, Timings};

use crate::terminal::Screen;

/// Tokens of an answer where neither the command nor the context says how many.
pub const SHORT_ANSWER: usize = 128;

/// Hands the events of a completion to the screen.
pub struct Stream<'a> {
    screen: &'a mut Screen,
    /// Tokens of the prompt, for its progress.
    prompt_tokens: usize,
    /// With `--json` nothing is shown before the end.
    silent: bool,
    error: Option<io::Error>,
}

impl<'a> Stream<'a> {
    /// A stream of an answer to a prompt of so many tokens.
    pub fn new(screen: &'a mut Screen, prompt_tokens: usize, silent: bool) -> Self {
        Self { screen, prompt_tokens, silent, error: None }
    }

    /// Shows an event. A reader that went away ends the work.
    pub fn event(&mut self, event: Event<'_>) -> ControlFlow<()> {
        if self.silent {
            return ControlFlow::Continue(());
        }
        let shown = match event {
            Event::Prefilled(done) => self.screen.prefilled(done, self.prompt_tokens),
            Event::Part(MessageEvent::Reasoning(text)) => self.screen.text(text, ""),
            Event::Part(MessageEvent::Content(text)) => self.screen.text("", text),
            // No tools are offered here.
            Event::Token(_) | Event::Generated(_) | Event::Part(_) => Ok(()),
        };
        match shown {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.error = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    /// Ends the answer's last line.
    ///
    /// # Errors
    /// Standard output could not be written, now or before.
    pub fn finish(self) -> io::Result<()> {
        match self.error {
            Some(error) => Err(error),
            None if self.silent => Ok(()),
            None => self.screen.end(),
        }
    }
}

/// The line about a finished `lily run` of at most so many tokens, with or without stop strings.
pub fn summary(
    (finish, timings): (FinishReason, &Timings),
    max_tokens: usize,
    has_stop_strings: bool,
    load_time: Duration,
) -> String {
    let end = match finish {
        FinishReason::Stop | FinishReason::ToolCalls if has_stop_strings => {
            "ended by itself or by --stop"
        }
        FinishReason::Stop | FinishReason::ToolCalls => "ended by itself",
        FinishReason::Length if timings.completion_tokens < max_tokens => {
            "ended by --ctx, the context is full"
        }
        FinishReason::Length => "ended by --max-tokens",
        FinishReason::Cancelled => "stopped",
    };
    format!(
        "{end}; {} prompt tokens at {} tok/s, {} tokens at {} tok/s; loaded in {:.1} s",
        timings.prompt_tokens,
        rate(timings.prefill_tok_s()),
        timings.completion_tokens,
        rate(timings.decode_tok_s()),
        load_time.as_secs_f64()
    )
}

/// A speed for people.
pub fn rate(value: Option<f64>) -> String {
    value.map_or("–".into(), |v| format!("{v:.1}"))
}
