//! A model of exact words: what it says stands in a file.
//!
//! It takes the engine's place where a test needs to know the text beforehand. Everything around
//! it, from the chat template to the stop strings, is what a real model has.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lily_text::{Markers, Tokenizer};
use serde::Deserialize;

use crate::ChatError;
use crate::completion::{CompletionRequest, Event, FinishReason, Outcome, Timings, Writer};

/// Why a script cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// A line is not what it should be.
    #[error(
        "line {line} of the script should be a JSON object such as {{\"pieces\": [\"Hel\", \"lo\"]}}, \
         but {detail}; correct it"
    )]
    Line {
        /// Counted from 1.
        line: usize,
        /// What the parser said.
        detail: String,
    },
    /// There is no line.
    #[error("the script has no line; give at least one {{\"pieces\": [\"…\"]}}")]
    Empty,
}

/// What a scripted model says, request by request.
#[derive(Debug)]
pub struct Script {
    lines: Vec<Arc<[String]>>,
    /// Requests that have taken a line.
    taken: AtomicUsize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    pieces: Vec<String>,
}

impl Script {
    /// Reads a script: one JSON object a line, `{"pieces": ["…", "…"]}`. Empty lines count for
    /// nothing.
    ///
    /// # Errors
    /// A line is something else, or there is none.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let mut lines = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let parsed: Line = serde_json::from_str(line).map_err(|error| ScriptError::Line {
                line: index + 1,
                detail: error.to_string(),
            })?;
            lines.push(parsed.pieces.into());
        }
        if lines.is_empty() {
            return Err(ScriptError::Empty);
        }
        Ok(Self { lines, taken: AtomicUsize::new(0) })
    }

    /// The pieces of the next request: the n-th takes the n-th line, again from the first after the
    /// last.
    pub fn next(&self) -> Arc<[String]> {
        let index = self.taken.fetch_add(1, Ordering::Relaxed) % self.lines.len();
        Arc::clone(&self.lines[index])
    }
}

/// Says `pieces` instead of running a model, one piece a step. The text passes as it is written;
/// its tokens are counted by the tokenizer, in which control tokens act as such. Behind the last
/// piece comes the first of the request's stop tokens, if the limit leaves room for it.
///
/// # Errors
/// A piece cannot be tokenized, or a stop string is empty.
pub fn complete_script(
    pieces: &[String],
    tokenizer: &Tokenizer,
    request: &CompletionRequest,
    on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Outcome, ChatError> {
    let start = Instant::now();
    let mut run = Run {
        writer: Writer::new(tokenizer, request, on_event)?,
        tokenizer,
        request,
        tokens: Vec::new(),
        first_token: None,
        start,
    };
    let finish = match run.read_prompt() {
        ControlFlow::Break(()) => FinishReason::Cancelled,
        ControlFlow::Continue(()) => run.say(pieces)?,
    };
    let Run { writer, tokens, first_token, .. } = run;
    let timings = Timings {
        first_token: first_token.unwrap_or(Duration::ZERO),
        total: start.elapsed(),
        prompt_tokens: request.prompt.len(),
        completion_tokens: tokens.len(),
    };
    Ok(writer.outcome(tokens, finish, timings))
}

struct Run<'a> {
    writer: Writer<'a>,
    tokenizer: &'a Tokenizer,
    request: &'a CompletionRequest,
    tokens: Vec<u32>,
    first_token: Option<Duration>,
    start: Instant,
}

impl Run<'_> {
    fn read_prompt(&mut self) -> ControlFlow<()> {
        self.writer.report(Event::Prefilled(self.request.prompt.len()))
    }

    fn say(&mut self, pieces: &[String]) -> Result<FinishReason, ChatError> {
        for piece in pieces {
            let ids = self.tokenizer.encode(piece, Markers::Control)?;
            if let Some(finish) = self.step(piece, &ids) {
                return Ok(finish);
            }
        }
        if self.tokens.len() >= self.request.max_tokens {
            return Ok(FinishReason::Length);
        }
        self.tokens.extend(self.request.stop_ids.first());
        Ok(FinishReason::Stop)
    }

    /// Says one piece; gives the reason if the text ends with it.
    fn step(&mut self, piece: &str, ids: &[u32]) -> Option<FinishReason> {
        let room = self.request.max_tokens - self.tokens.len();
        if room == 0 {
            return Some(FinishReason::Length);
        }
        if !ids.is_empty() {
            self.first_token.get_or_insert_with(|| self.start.elapsed());
        }
        let end = ids.iter().position(|id| self.request.stop_ids.contains(id));
        let said = end.unwrap_or(ids.len()).min(room);
        let is_whole = said == ids.len() && !ids.iter().any(|&id| self.tokenizer.is_special(id));
        let flow = if is_whole {
            self.tokens.extend(ids);
            self.writer.push_text(piece, self.tokens.len())
        } else {
            self.step_by_token(&ids[..said])
        };
        if flow.is_break() {
            return Some(FinishReason::Cancelled);
        }
        if said < ids.len() {
            let Some(_) = end.filter(|&end| end < room) else { return Some(FinishReason::Length) };
            self.tokens.push(ids[said]);
            return Some(FinishReason::Stop);
        }
        match self.writer.report(Event::Generated(self.tokens.len())) {
            ControlFlow::Continue(()) => None,
            ControlFlow::Break(()) => Some(FinishReason::Cancelled),
        }
    }

    fn step_by_token(&mut self, ids: &[u32]) -> ControlFlow<()> {
        ids.iter().try_for_each(|&id| {
            self.tokens.push(id);
            self.writer.push(id, self.tokens.len())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lily_model::sampling::Sampling;
    use lily_text::{SYNTH_MIN_VOCAB, Thinking, synth_tokenizer_files};

    fn tokenizer() -> Tokenizer {
        let files = synth_tokenizer_files(SYNTH_MIN_VOCAB).unwrap();
        Tokenizer::from_json(files.tokenizer_json.as_bytes()).unwrap()
    }

    fn say(pieces: &[&str], max_tokens: usize, stop: &[&str]) -> (Outcome, Vec<String>) {
        let tokenizer = tokenizer();
        let request = CompletionRequest {
            prompt: vec![1; 3],
            thinking: Thinking::Open,
            max_tokens,
            stop_ids: vec![tokenizer.id_of("<|im_end|>").unwrap()],
            stop: stop.iter().map(ToString::to_string).collect(),
            tools: Vec::new(),
            sampling: Sampling::greedy(),
        };
        let pieces: Vec<String> = pieces.iter().map(ToString::to_string).collect();
        let mut texts = Vec::new();
        let outcome = complete_script(&pieces, &tokenizer, &request, &mut |event| {
            if let Event::Text { reasoning, content } = event {
                texts.push(format!("{reasoning}|{content}"));
            }
            ControlFlow::Continue(())
        });
        (outcome.unwrap(), texts)
    }

    #[test]
    fn each_piece_is_a_step_and_all_of_them_the_text() {
        let (outcome, texts) = say(&["hm", "m\n</think>\n\nYes", ", é\u{301}"], 100, &[]);
        assert_eq!(
            (outcome.reasoning.as_str(), outcome.content.as_str()),
            ("hmm", "Yes, é\u{301}")
        );
        assert_eq!(texts, ["hm|", "m|Yes", "|, é\u{301}"]);
        assert_eq!(outcome.finish, FinishReason::Stop);
        // Bytes, the closing tag as one token, and the token that ends the turn.
        assert_eq!(outcome.tokens.len(), 3 + 1 + 1 + 2 + 3 + 6 + 1);
    }

    #[test]
    fn a_script_is_cut_by_limits_stop_strings_and_stop_tokens() {
        let (outcome, _) = say(&["</think>abc", "def"], 5, &[]);
        assert_eq!((outcome.content.as_str(), outcome.finish), ("abcd", FinishReason::Length));
        assert_eq!(outcome.tokens.len(), 5);
        let (outcome, _) = say(&["</think>abc"], 4, &[]);
        assert_eq!((outcome.content.as_str(), outcome.finish), ("abc", FinishReason::Length));
        let (outcome, _) = say(&["</think>ab", "cd", "ef"], 50, &["bc"]);
        assert_eq!((outcome.content.as_str(), outcome.finish), ("a", FinishReason::Stop));
        let (outcome, _) = say(&["</think>ab<|im_end|>cd", "ef"], 50, &[]);
        assert_eq!((outcome.content.as_str(), outcome.finish), ("ab", FinishReason::Stop));
        assert_eq!(outcome.tokens.len(), 4);
    }

    #[test]
    fn lines_are_taken_in_turn_and_again_from_the_first() {
        let script = Script::parse("{\"pieces\": [\"a\"]}\n\n{\"pieces\": []}\n").unwrap();
        let taken: Vec<usize> = (0..4).map(|_| script.next().len()).collect();
        assert_eq!(taken, [1, 0, 1, 0]);
    }

    #[test]
    fn a_line_that_is_something_else_is_named() {
        for (text, words) in [
            ("", "no line"),
            ("{\"pieces\": [\"a\"]}\n{\"pieces\": [1]}", "line 2"),
            ("{\"piece\": []}", "line 1"),
            ("[]", "line 1"),
            ("{\"pieces\": [], \"x\": 1}", "unknown field"),
        ] {
            let error = Script::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
