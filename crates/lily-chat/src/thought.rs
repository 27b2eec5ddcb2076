//! The thought in front of an answer: how long it may be, and that a format begins behind it.

use lily_model::engine::{Allowed, Constraint, ConstraintError, TokenMask};
use lily_text::{Markers, Thinking, Tokenizer};

use crate::format::Bound;

/// The tag that closes a thought.
pub(crate) const CLOSE: &str = "</think>";
/// What stands on both sides of the tag where a thought is closed from outside.
pub(crate) const SEAM: (&str, &str) = ("\n", "\n\n");

/// Lets a thought go on for so many tokens, and then closes it. The tag cannot come again behind
/// it: the rest of a thought that was cut must not end in the answer.
///
/// A format that binds the answer begins behind the thought and the line feeds that templates have
/// there; the turn cannot end before.
#[derive(Clone, Debug)]
pub(crate) struct Thought {
    tokenizer: Tokenizer,
    /// Tokens that the thought may still have.
    left: usize,
    /// The tag, if it is one token.
    close: Option<u32>,
    /// What closes the thought.
    closing: Vec<u32>,
    /// What stands behind the tag.
    seam: Vec<u32>,
    /// The end of the thought so far, shorter than the tag.
    tail: Vec<u8>,
    state: State,
    /// Binds what comes behind the thought.
    behind: Option<Bound>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Thinking,
    /// So many tokens of the closing have come.
    Closing(usize),
    /// The model closed the thought by itself; so many tokens of the seam have come.
    Seam(usize),
    /// The model closed the thought by itself.
    Ended,
    /// The thought was cut.
    Cut,
}

impl Thought {
    /// A bound of `budget` tokens on the thought that the prompt has opened, in front of `behind`.
    /// Without an open thought nothing but `behind` binds.
    pub fn bind(
        budget: Option<usize>,
        thinking: Thinking,
        tokenizer: &Tokenizer,
        behind: Option<&Bound>,
    ) -> Option<Box<dyn Constraint>> {
        let close = tokenizer.id_of(CLOSE);
        let is_bound = match budget {
            Some(_) => close.is_some() || behind.is_some(),
            None => behind.is_some(),
        };
        if thinking != Thinking::Open || !is_bound {
            return behind.map(Constraint::boxed);
        }
        let encode = |text: &str| tokenizer.encode(text, Markers::Control);
        let text = format!("{}{CLOSE}{}", SEAM.0, SEAM.1);
        let closing = encode(&text).unwrap_or_else(|_| close.into_iter().collect());
        let behind = behind.cloned();
        let seam = match &behind {
            Some(behind) if behind.binds_answer() => encode(SEAM.1).unwrap_or_default(),
            _ => Vec::new(),
        };
        Some(Box::new(Self {
            tokenizer: tokenizer.clone(),
            left: budget.unwrap_or(usize::MAX),
            close,
            closing,
            seam,
            tail: Vec::new(),
            state: State::Thinking,
            behind,
        }))
    }

    /// What a thought may go on with.
    fn think(&self, mask: &mut TokenMask) -> Allowed {
        let Some(behind) = self.behind.as_ref().filter(|behind| behind.binds_answer()) else {
            return Allowed::All;
        };
        mask.fill();
        behind.vocabulary().closed_to_thoughts.iter().for_each(|&id| mask.forbid(id));
        // The tag may also be spelled. What stands behind it comes in tokens of its own.
        if (1..=self.tail.len()).any(|len| CLOSE.as_bytes().starts_with(self.last(len))) {
            for id in 0..u32::try_from(self.tokenizer.vocab_len()).unwrap_or(u32::MAX) {
                let rest = self.rest_behind_tag(id);
                if rest.is_some_and(|rest| !rest.is_empty()) {
                    mask.forbid(id);
                }
            }
        }
        Allowed::Masked
    }

    fn last(&self, len: usize) -> &[u8] {
        &self.tail[self.tail.len() - len..]
    }

    /// What a token has behind the tag that it completes.
    fn rest_behind_tag(&self, id: u32) -> Option<&[u8]> {
        let bytes = self.tokenizer.token_bytes(id)?;
        if Some(id) == self.close {
            return Some(&[]);
        }
        let tag = CLOSE.as_bytes();
        // So many bytes of the tag have come.
        (1..tag.len()).rev().filter(|&come| come <= self.tail.len()).find_map(|come| {
            let (before, missing) = tag.split_at(come);
            if self.last(come) == before { bytes.strip_prefix(missing) } else { None }
        })
    }

    fn go_on_thinking(&mut self, id: u32) {
        if let Some(rest) = self.rest_behind_tag(id) {
            let is_seam = !rest.is_empty() || self.seam.is_empty();
            self.state = if is_seam { State::Ended } else { State::Seam(0) };
            return;
        }
        self.left = self.left.saturating_sub(1);
        self.tail.extend_from_slice(self.tokenizer.token_bytes(id).unwrap_or(&[]));
        let kept = self.tail.len().min(CLOSE.len() - 1);
        self.tail.drain(..self.tail.len() - kept);
    }
}

impl Constraint for Thought {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<Allowed, ConstraintError> {
        if self.state == State::Thinking && self.left == 0 {
            self.state = State::Closing(0);
        }
        let forced = match self.state {
            State::Thinking => return Ok(self.think(mask)),
            State::Closing(come) => self.closing.get(come),
            State::Seam(come) => self.seam.get(come),
            State::Ended | State::Cut => None,
        };
        if let Some(&id) = forced {
            mask.allow(id);
            return Ok(Allowed::Masked);
        }
        let allowed = match &mut self.behind {
            Some(behind) => behind.mask(mask)?,
            None => Allowed::All,
        };
        let Some(close) = self.close.filter(|_| self.state == State::Cut) else {
            return Ok(allowed);
        };
        if allowed == Allowed::All {
            mask.fill();
        }
        mask.forbid(close);
        Ok(Allowed::Masked)
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        let goes_on = |come: usize, ids: &[u32]| come + 1 < ids.len();
        match self.state {
            State::Thinking => self.go_on_thinking(id),
            State::Closing(come) if goes_on(come, &self.closing) => {
                self.state = State::Closing(come + 1);
            }
            State::Closing(_) => self.state = State::Cut,
            State::Seam(come) if goes_on(come, &self.seam) => self.state = State::Seam(come + 1),
            State::Seam(_) => self.state = State::Ended,
            State::Ended | State::Cut => {
                if let Some(behind) = &mut self.behind {
                    behind.accept(id)?;
                }
            }
        }
        Ok(())
    }

    fn boxed(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lily_text::{SYNTH_MIN_VOCAB, synth_tokenizer_files};

    fn bound(budget: usize, thinking: Thinking) -> (Tokenizer, Option<Box<dyn Constraint>>) {
        let files = synth_tokenizer_files(SYNTH_MIN_VOCAB).unwrap();
        let tokenizer = Tokenizer::from_json(files.tokenizer_json.as_bytes()).unwrap();
        let bound = Thought::bind(Some(budget), thinking, &tokenizer, None);
        (tokenizer, bound)
    }

    /// Ids that may come next.
    fn next(constraint: &mut dyn Constraint) -> Vec<u32> {
        let mut mask = TokenMask::none(SYNTH_MIN_VOCAB);
        let all = 0..SYNTH_MIN_VOCAB as u32;
        match constraint.mask(&mut mask).unwrap() {
            Allowed::All => all.collect(),
            Allowed::Masked => all.filter(|&id| mask.allows(id)).collect(),
        }
    }

    #[test]
    fn r48_a_thought_is_closed_once_when_its_budget_is_spent() {
        let (tokenizer, budget) = bound(2, Thinking::Open);
        let mut budget = budget.unwrap();
        let close = tokenizer.id_of(CLOSE).unwrap();
        for _ in 0..2 {
            assert_eq!(next(budget.as_mut()).len(), SYNTH_MIN_VOCAB);
            budget.accept(u32::from(b'a')).unwrap();
        }
        let feed = u32::from(b'\n');
        for id in [feed, close, feed, feed] {
            assert_eq!(next(budget.as_mut()), [id]);
            budget.accept(id).unwrap();
        }
        let rest = next(budget.as_mut());
        assert_eq!(rest.len(), SYNTH_MIN_VOCAB - 1);
        assert!(!rest.contains(&close));
    }

    #[test]
    fn r49_a_thought_that_ends_before_is_left_alone() {
        let (tokenizer, budget) = bound(2, Thinking::Open);
        let mut budget = budget.unwrap();
        budget.accept(tokenizer.id_of(CLOSE).unwrap()).unwrap();
        for _ in 0..5 {
            assert_eq!(next(budget.as_mut()).len(), SYNTH_MIN_VOCAB);
            budget.accept(u32::from(b'a')).unwrap();
        }
        assert!(bound(2, Thinking::Closed).1.is_none());
    }
}
