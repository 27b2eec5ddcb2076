//! Where states of a prompt are saved.

/// States are not saved closer to each other than this, in tokens: a chunk of so few is read as
/// quickly as a state is copied.
pub(crate) const NEAR: usize = 16;
/// Long prompts have a state at least so often, in tokens. A state of the reference model is as
/// large as the rows of 3,300 tokens.
const PERIOD: usize = 4096;
/// Tokens at the end of a prompt without turns that are not part of the state near its end: the next
/// prompt may spell the last word with other tokens.
const TAIL: usize = 8;
/// Tokens behind the last turn from which on the prompt's end is far from it.
const FAR: usize = 64;

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
    /// In this order, unless one is near another: where the prompt parts from what is kept, because
    /// others will part there too; in front of the turn that is to be generated, because a template
    /// may render its beginning in another way next time; behind the first turn, the system prompt;
    /// and in front of the last message.
    pub(crate) fn new(tokens: usize, borders: &[usize], resumed: usize, parted: usize) -> Self {
        let is_inside = |&at: &usize| at > 0 && at < tokens;
        let mut inside = borders.iter().copied().filter(is_inside);
        let first = inside.next();
        let mut back = borders.iter().rev().copied().filter(is_inside);
        let (last, before) = (back.next(), back.next());
        let end = match last {
            Some(last) if tokens - last < FAR => None,
            _ => tokens.checked_sub(TAIL).filter(is_inside),
        };
        let mut next: Vec<usize> = Vec::new();
        for at in [Some(parted).filter(is_inside), end, last, first, before].into_iter().flatten() {
            if at >= resumed + NEAR && next.iter().all(|&other| at.abs_diff(other) >= NEAR) {
                next.push(at);
            }
        }
        next.sort_unstable_by(|a, b| b.cmp(a));
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
        let is_due = position >= self.last + PERIOD && position + NEAR <= tokens;
        if is_point || is_due {
            self.last = position;
        }
        is_point || is_due
    }
}
