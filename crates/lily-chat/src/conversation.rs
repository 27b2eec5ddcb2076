//! A sequence that is kept from turn to turn.

use std::ops::ControlFlow;

use lily_model::engine::{Engine, SequenceId};
use lily_text::Tokenizer;

use crate::completion::{CompletionRequest, Event, Outcome};
use crate::error::ChatError;
use crate::stepwise::complete;

/// Feeds only the new part of a prompt when the sequence's tokens are its beginning. A recurrent state
/// cannot be cut back to an earlier place: otherwise the prompt goes on at the last state that the
/// engine's cache has of it, or begins again at the first token.
#[derive(Debug, Default)]
pub struct Conversation {
    sequence: Option<SequenceId>,
}

impl Conversation {
    /// A conversation without a sequence yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Completes a whole prompt. Returns the outcome and the number of prompt tokens that were in
    /// the states already.
    ///
    /// # Errors
    /// As [`complete`]; the next call starts from the first token.
    pub fn complete(
        &mut self,
        engine: &mut Engine,
        tokenizer: &Tokenizer,
        request: &CompletionRequest,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<(Outcome, usize), ChatError> {
        let (sequence, kept) = self.sequence_for(engine, &request.prompt)?;
        let mut rest = request.clone();
        rest.prompt.drain(..kept);
        match complete(engine, sequence, tokenizer, &rest, on_event) {
            Ok(outcome) => {
                let cached = outcome.cached_tokens;
                Ok((outcome, kept + cached))
            }
            Err(error) => {
                self.reset(engine);
                Err(error)
            }
        }
    }

    /// Forgets everything.
    pub fn reset(&mut self, engine: &mut Engine) {
        if let Some(sequence) = self.sequence.take() {
            engine.close(sequence);
        }
    }

    /// Tokens in the states.
    pub fn tokens(&self, engine: &Engine) -> usize {
        let tokens = self.sequence.and_then(|s| engine.tokens(s).ok());
        tokens.map_or(0, <[u32]>::len)
    }

    fn sequence_for(
        &mut self,
        engine: &mut Engine,
        prompt: &[u32],
    ) -> Result<(SequenceId, usize), ChatError> {
        if let Some(sequence) = self.sequence {
            match engine.tokens(sequence) {
                // At least one token must be fed to get logits.
                Ok(tokens) if prompt.len() > tokens.len() && prompt.starts_with(tokens) => {
                    return Ok((sequence, tokens.len()));
                }
                _ => self.reset(engine),
            }
        }
        let sequence = engine.open_for(prompt)?;
        self.sequence = Some(sequence);
        Ok((sequence, 0))
    }
}
