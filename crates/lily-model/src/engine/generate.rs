//! What to generate, and the loop over a run.

use std::ops::ControlFlow;

use super::{Constraint, Engine, EngineError, SequenceId, TokenLogprobs};
use crate::sampling::Sampling;

/// What to generate.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Most tokens to choose.
    pub limit: usize,
    /// Tokens that end the text; they are handed out like any other.
    pub stop_ids: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Log probabilities of every token that is chosen, and of so many of the most likely ones.
    pub logprobs: Option<usize>,
    /// What the text must look like.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Indexes of the prompt, ascending, at which turns begin: good places to keep a state for other
    /// prompts, in an engine with a cache.
    pub borders: Vec<usize>,
}

impl Default for Generation {
    /// Greedy, without a limit.
    fn default() -> Self {
        Self {
            limit: usize::MAX,
            stop_ids: Vec::new(),
            sampling: Sampling::greedy(),
            logprobs: None,
            constraint: None,
            borders: Vec::new(),
        }
    }
}

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The token.
    pub id: u32,
    /// Log probabilities, if [`Generation::logprobs`] asks for them.
    pub logprobs: Option<TokenLogprobs>,
}

/// How far a generation is.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// So many tokens of the prompt are read; comes after every chunk.
    Prefilled(usize),
    /// A token was chosen.
    Token(Chosen),
}

impl Progress {
    /// The chosen token, if this is one.
    pub fn token(&self) -> Option<u32> {
        match self {
            Self::Token(chosen) => Some(chosen.id),
            Self::Prefilled(_) => None,
        }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token was chosen.
    Stop(u32),
    /// `limit` tokens were chosen, or the context is full.
    Length,
    /// The caller asked for it.
    Cancelled,
}

impl Engine {
    /// Feeds `prompt`, then chooses tokens until a stop token, the limit, or `on_progress` breaks;
    /// a break inside the prompt ends the work after the chunk, without a token.
    ///
    /// Afterwards the states hold the prompt and all chosen tokens but the last, which is pending:
    /// exactly as if the sequence had run to that point and no further.
    pub fn generate(
        &mut self,
        sequence: SequenceId,
        prompt: &[u32],
        generation: &Generation,
        on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Finish, EngineError> {
        let mut run = self.start(sequence, prompt, generation.clone())?;
        while let Some(progress) = self.advance(&mut run)? {
            let asked = on_progress(progress).is_break();
            // The first token costs nothing once the whole prompt is read.
            if asked && (!run.is_prompt_read() || run.produced() > 0) {
                self.cancel(&mut run)?;
            }
        }
        Ok(run.finish().unwrap_or(Finish::Cancelled))
    }
}
