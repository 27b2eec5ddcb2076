//! A bound on the thought.

use lily_model::engine::{Allowed, Constraint, ConstraintError, TokenMask};
use lily_text::{Markers, Thinking, Tokenizer};

/// The tag that closes a thought.
pub(crate) const CLOSE: &str = "</think>";
/// What stands on both sides of the tag where a thought is closed from outside.
pub(crate) const SEAM: (&str, &str) = ("\n", "\n\n");

/// Lets a thought go on for so many tokens, and then closes it. The tag cannot come again behind
/// it: the rest of a thought that was cut must not end in the answer.
#[derive(Clone, Debug)]
pub(crate) struct ThinkingBudget {
    /// Tokens that the thought may still have.
    left: usize,
    close: u32,
    /// What closes the thought.
    closing: Vec<u32>,
    state: State,
    /// Decides besides, once the thought is over.
    behind: Option<Box<dyn Constraint>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Thinking,
    /// So many tokens of the closing have come.
    Closing(usize),
    /// The model closed the thought by itself.
    Ended,
    /// The thought was cut.
    Cut,
}

impl ThinkingBudget {
    /// A bound of `budget` tokens on the thought that the prompt has opened, in front of `behind`.
    /// Without an open thought, or where the tokenizer has no tag, nothing is bound, and `behind`
    /// comes back.
    pub fn bind(
        budget: Option<usize>,
        thinking: Thinking,
        tokenizer: &Tokenizer,
        behind: Option<Box<dyn Constraint>>,
    ) -> Option<Box<dyn Constraint>> {
        let (Some(left), Thinking::Open, Some(close)) = (budget, thinking, tokenizer.id_of(CLOSE))
        else {
            return behind;
        };
        let text = format!("{}{CLOSE}{}", SEAM.0, SEAM.1);
        let closing = tokenizer.encode(&text, Markers::Control).unwrap_or_else(|_| vec![close]);
        Some(Box::new(Self { left, close, closing, state: State::Thinking, behind }))
    }
}

impl Constraint for ThinkingBudget {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<Allowed, ConstraintError> {
        if self.state == State::Thinking && self.left == 0 {
            self.state = State::Closing(0);
        }
        if let State::Closing(come) = self.state {
            self.closing.get(come).into_iter().for_each(|&id| mask.allow(id));
            return Ok(Allowed::Masked);
        }
        if self.state == State::Thinking {
            return Ok(Allowed::All);
        }
        let allowed = match &mut self.behind {
            Some(behind) => behind.mask(mask)?,
            None => Allowed::All,
        };
        if self.state != State::Cut {
            return Ok(allowed);
        }
        if allowed == Allowed::All {
            mask.words_mut().fill(u32::MAX);
        }
        if let Some(word) = mask.words_mut().get_mut(self.close as usize / 32) {
            *word &= !(1 << (self.close % 32));
        }
        Ok(Allowed::Masked)
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        match self.state {
            State::Thinking if id == self.close => self.state = State::Ended,
            State::Thinking => self.left = self.left.saturating_sub(1),
            State::Closing(come) => {
                let come = come + 1;
                self.state =
                    if come < self.closing.len() { State::Closing(come) } else { State::Cut };
            }
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
        let bound = ThinkingBudget::bind(Some(budget), thinking, &tokenizer, None);
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
