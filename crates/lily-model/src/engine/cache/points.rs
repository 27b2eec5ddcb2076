//! Where states of a prompt are saved.

use lily_kernels::CHUNK;

/// The state behind an answer, or where a request was left, is not saved so near to another one, in
/// tokens: so few are read as quickly as a state is copied.
pub(crate) const NEAR: usize = 16;
/// Long prompts have a state at least so often, in tokens. A state of the reference model is as
/// large as the rows of 3,300 tokens.
const PERIOD: usize = 4096;
/// Tokens behind the last state of a prompt, at least: fewer are summed in another way than as the
/// end of a longer chunk.
const TAIL: usize = 17;

/// Positions of a prompt at which its states are saved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SavePoints {
    /// Those that are still to come, the next one last.
    next: Vec<usize>,
    /// Position of the last state that was saved or went on from.
    last: usize,
}

impl SavePoints {
    /// Points of a prompt of `tokens` tokens with turns at `borders`, ascending, which goes on behind
    /// `resumed` tokens and parts from what is kept at `parted`.
    ///
    /// These are: where the prompt parts from what is kept, because others will part there too; in
    /// front of the turn that is to be generated, because a template may render its beginning in
    /// another way next time; behind the first turn, the system prompt; in front of the last message;
    /// and near the end of a prompt that has no turn there. Each is moved back to the end of a block of
    /// the delta rule: the sums are then those of a chunk that goes on.
    pub(crate) fn new(tokens: usize, borders: &[usize], resumed: usize, parted: usize) -> Self {
        let is_inside = |at: &&usize| **at > 0 && **at < tokens;
        let first = borders.iter().find(is_inside);
        let mut back = borders.iter().rev().filter(is_inside);
        let (last, before) = (back.next(), back.next());
        let has_turn = last.is_some_and(|last| tokens - last < CHUNK + TAIL);
        let end = Some(&tokens).filter(|_| !has_turn);
        let mut next: Vec<usize> = [Some(&parted), end, last, first, before]
            .into_iter()
            .flatten()
            .map(|&at| at.min(tokens.saturating_sub(TAIL)) / CHUNK * CHUNK)
            .filter(|&at| at > resumed)
            .collect();
        next.sort_unstable_by(|a, b| b.cmp(a));
        next.dedup();
        Self { next, last: resumed }
    }

    /// Positions still to come, ascending.
    pub(crate) fn ahead(&self) -> impl Iterator<Item = usize> + '_ {
        self.next.iter().rev().copied()
    }

    /// The next one.
    pub(crate) fn next(&self) -> Option<usize> {
        self.next.last().copied()
    }

    /// Whether the state at `position` is to be saved, of a prompt of `tokens`; it is noted as saved
    /// then.
    pub(crate) fn reach(&mut self, position: usize, tokens: usize) -> bool {
        let mut is_point = false;
        while self.next.last().is_some_and(|&next| next <= position) {
            is_point |= self.next.pop() == Some(position);
        }
        let is_due = position >= self.last + PERIOD
            && position.is_multiple_of(CHUNK)
            && position + TAIL <= tokens;
        if is_point || is_due {
            self.last = position;
        }
        is_point || is_due
    }
}
