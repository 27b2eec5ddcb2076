//! A model of exact words: what it says stands in a file.
//!
//! It takes the engine's place where a test needs to know the text beforehand. Everything around
//! it, from the chat template to the stop strings, is what a real model has.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lily_model::engine::{Chosen, TokenLogprobs};
use lily_text::{Markers, Thinking, Tokenizer};
use serde::Deserialize;

use crate::ChatError;
use crate::completion::{CompletionRequest, Event, FinishReason, OnEvent, Outcome};
use crate::stepwise::Reply;
use crate::thought::{CLOSE, SEAM};

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

/// A completion whose words are known, under way: one piece a step. The text passes as it is
/// written; its tokens are counted by the tokenizer, in which control tokens act as such. Behind the
/// last piece comes the first of the request's stop tokens, if the limit leaves room for it. A
/// thought that its budget cuts goes on behind its own end.
pub struct ScriptedCompletion {
    pieces: Arc<[String]>,
    /// Pieces that were said; none before the prompt is read.
    said: Option<usize>,
    tokenizer: Tokenizer,
    prompt_tokens: usize,
    max_tokens: usize,
    stop_ids: Vec<u32>,
    /// Log probabilities of so many tokens at each place.
    logprobs: Option<usize>,
    reply: Reply,
}

impl ScriptedCompletion {
    /// Begins to say `pieces` instead of running a model.
    ///
    /// # Errors
    /// A stop string is empty.
    pub fn start(
        pieces: Arc<[String]>,
        tokenizer: &Tokenizer,
        request: &CompletionRequest,
    ) -> Result<Self, ChatError> {
        let pieces = match request.thinking_budget {
            Some(budget) if request.thinking == Thinking::Open => {
                within_budget(pieces, tokenizer, budget)?
            }
            _ => pieces,
        };
        Ok(Self {
            pieces,
            logprobs: request.logprobs,
            said: None,
            tokenizer: tokenizer.clone(),
            prompt_tokens: request.prompt.len(),
            max_tokens: request.max_tokens,
            stop_ids: request.stop_ids.clone(),
            reply: Reply::new(tokenizer, request)?,
        })
    }

    /// Reads the prompt, or says one piece. Gives `false` once the completion has ended, behind its
    /// last text.
    ///
    /// # Errors
    /// The piece cannot be tokenized.
    pub fn advance(&mut self, on_event: &mut OnEvent<'_>) -> Result<bool, ChatError> {
        if self.reply.has_ended() {
            return Ok(false);
        }
        let finish = match self.said {
            None => {
                self.said = Some(0);
                let flow = on_event(Event::Prefilled(self.prompt_tokens));
                flow.is_break().then_some(FinishReason::Cancelled)
            }
            Some(said) => {
                self.said = Some(said + 1);
                match self.pieces.get(said).cloned() {
                    Some(piece) => {
                        let ids = self.tokenizer.encode(&piece, Markers::Control)?;
                        self.step(&piece, &ids, on_event)
                    }
                    None => Some(self.last_step()),
                }
            }
        };
        if let Some(finish) = finish {
            self.reply.end(finish, on_event);
        }
        Ok(finish.is_none())
    }

    /// What came of it; cancelled if it was not at its end.
    pub fn finish(self) -> Outcome {
        self.reply.outcome(0)
    }

    /// Whether the prompt is read.
    pub fn is_prompt_read(&self) -> bool {
        self.said.is_some()
    }

    fn last_step(&mut self) -> FinishReason {
        if self.reply.tokens.len() >= self.max_tokens {
            return FinishReason::Length;
        }
        self.reply.tokens.extend(self.stop_ids.first());
        FinishReason::Stop
    }

    /// Says one piece; gives the reason if the text ends with it.
    fn step(
        &mut self,
        piece: &str,
        ids: &[u32],
        on_event: &mut OnEvent<'_>,
    ) -> Option<FinishReason> {
        let room = self.max_tokens - self.reply.tokens.len();
        if room == 0 {
            return Some(FinishReason::Length);
        }
        if !ids.is_empty() {
            self.reply.note_first();
        }
        let end = ids.iter().position(|id| self.stop_ids.contains(id));
        let said = end.unwrap_or(ids.len()).min(room);
        let is_whole = said == ids.len() && !ids.iter().any(|&id| self.tokenizer.is_special(id));
        let flow = if is_whole {
            let flow = ids.iter().try_for_each(|&id| self.note(id, on_event));
            let written = self.reply.writer.push_text(piece, on_event);
            if flow.is_break() { flow } else { written }
        } else {
            self.step_by_token(&ids[..said], on_event)
        };
        if flow.is_break() {
            return Some(FinishReason::Cancelled);
        }
        if said < ids.len() {
            let Some(_) = end.filter(|&end| end < room) else { return Some(FinishReason::Length) };
            self.reply.tokens.push(ids[said]);
            return Some(FinishReason::Stop);
        }
        match on_event(Event::Generated(self.reply.tokens.len())) {
            ControlFlow::Continue(()) => None,
            ControlFlow::Break(()) => Some(FinishReason::Cancelled),
        }
    }

    fn step_by_token(&mut self, ids: &[u32], on_event: &mut OnEvent<'_>) -> ControlFlow<()> {
        ids.iter().try_for_each(|&id| {
            self.note(id, on_event)?;
            self.reply.writer.push(id, on_event)
        })
    }

    /// Counts a token. There was no other choice: its probability is one.
    fn note(&mut self, id: u32, on_event: &mut OnEvent<'_>) -> ControlFlow<()> {
        self.reply.tokens.push(id);
        if self.reply.writer.ends_turn(id) {
            return ControlFlow::Continue(());
        }
        let logprobs = self.logprobs.map(|top| TokenLogprobs {
            chosen: 0.0,
            top: if top > 0 { vec![(id, 0.0)] } else { Vec::new() },
        });
        on_event(Event::Token(&Chosen { id, logprobs }))
    }
}

/// The pieces with a thought of at most `budget` tokens: one that is longer is cut and closed, and
/// the text goes on behind its own end.
fn within_budget(
    pieces: Arc<[String]>,
    tokenizer: &Tokenizer,
    budget: usize,
) -> Result<Arc<[String]>, ChatError> {
    let whole = pieces.concat();
    let end = whole.find(CLOSE);
    let (mut left, mut start) = (budget, 0);
    for piece in pieces.iter() {
        // Of the piece, what belongs to the thought.
        let within = end.unwrap_or(whole.len()).saturating_sub(start).min(piece.len());
        let Some(thought) = piece.get(..within) else { break };
        let ids = tokenizer.encode(thought, Markers::Control)?;
        if ids.len() > left {
            let mut kept = tokenizer.decode(&ids[..left]);
            while !thought.starts_with(&kept) {
                // In the middle of a character.
                kept.pop();
            }
            let behind = end.map_or(whole.len(), |end| end + CLOSE.len());
            let mut bound = parts(&pieces, 0..start + kept.len());
            bound.push(format!("{}{CLOSE}{}", SEAM.0, SEAM.1));
            bound.extend(parts(&pieces, behind..whole.len()));
            return Ok(bound.into());
        }
        left -= ids.len();
        start += piece.len();
        if end.is_some_and(|end| end < start) {
            break;
        }
    }
    Ok(pieces)
}

/// What pieces have in a range of their joined text.
fn parts(pieces: &[String], range: Range<usize>) -> Vec<String> {
    let mut start = 0;
    let mut parts = Vec::new();
    for piece in pieces {
        let first = range.start.clamp(start, start + piece.len()) - start;
        let last = range.end.clamp(start, start + piece.len()) - start;
        parts.extend(piece.get(first..last).filter(|part| !part.is_empty()).map(str::to_owned));
        start += piece.len();
    }
    parts
}

/// Says `pieces` from the first to the last, as [`ScriptedCompletion`].
///
/// # Errors
/// A piece cannot be tokenized, or a stop string is empty.
pub fn complete_script(
    pieces: &[String],
    tokenizer: &Tokenizer,
    request: &CompletionRequest,
    on_event: &mut OnEvent<'_>,
) -> Result<Outcome, ChatError> {
    let mut completion = ScriptedCompletion::start(pieces.into(), tokenizer, request)?;
    while completion.advance(on_event)? {}
    Ok(completion.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MessageEvent;
    use lily_model::sampling::Sampling;
    use lily_text::{SYNTH_MIN_VOCAB, synth_tokenizer_files};

    fn tokenizer() -> Tokenizer {
        let files = synth_tokenizer_files(SYNTH_MIN_VOCAB).unwrap();
        Tokenizer::from_json(files.tokenizer_json.as_bytes()).unwrap()
    }

    fn say(pieces: &[&str], max_tokens: usize, stop: &[&str]) -> (Outcome, Vec<String>) {
        let tokenizer = tokenizer();
        let request = CompletionRequest {
            prompt: vec![1; 3],
            thinking: Thinking::Open,
            thinking_budget: None,
            max_tokens,
            stop_ids: vec![tokenizer.id_of("<|im_end|>").unwrap()],
            stop: stop.iter().map(ToString::to_string).collect(),
            tools: Vec::new(),
            sampling: Sampling::greedy(),
            logprobs: None,
            format: None,
        };
        let pieces: Vec<String> = pieces.iter().map(ToString::to_string).collect();
        let mut texts = Vec::new();
        let outcome = complete_script(&pieces, &tokenizer, &request, &mut |event| {
            match event {
                Event::Part(MessageEvent::Reasoning(text)) => texts.push(format!("{text}|")),
                Event::Part(MessageEvent::Content(text)) => texts.push(format!("|{text}")),
                _ => {}
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
        assert_eq!(texts, ["hm|", "m|", "|Yes", "|, é\u{301}"]);
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
    fn a_token_that_belongs_between_turns_ends_the_turn() {
        let (outcome, texts) = say(&["</think>ab<|im_start|>user", "cd"], 50, &[]);
        assert_eq!((outcome.content.as_str(), outcome.finish), ("ab", FinishReason::Stop));
        assert_eq!(texts, ["|a", "|b"]);
        // As text of a model that spells it, it is text.
        let (outcome, _) = say(&["</think>ab<|im_", "start|>cd"], 50, &[]);
        assert_eq!(outcome.content, "ab<|im_start|>cd");
    }

    #[test]
    fn a_thought_is_cut_at_its_budget_whatever_the_pieces() {
        let tokenizer = tokenizer();
        let bound = |pieces: &[&str], budget| {
            let pieces: Vec<String> = pieces.iter().map(ToString::to_string).collect();
            within_budget(pieces.into(), &tokenizer, budget).unwrap().to_vec()
        };
        let cut = "\n</think>\n\n";
        assert_eq!(bound(&["abc", "def</think>x", "y"], 4), ["abc", "d", cut, "x", "y"]);
        assert_eq!(bound(&["abc", "def</th", "ink>x", "y"], 4), ["abc", "d", cut, "x", "y"]);
        assert_eq!(bound(&["abc", "def"], 3), ["abc", cut]);
        // Not in the middle of a character.
        assert_eq!(bound(&["aé</think>x"], 2), ["a", cut, "x"]);
        for whole in [&["abc", "def</think>x", "y"][..], &["abcdef", "</think>xyz"]] {
            assert_eq!(bound(whole, 6), whole);
        }
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
