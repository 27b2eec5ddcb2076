//! What a text must look like: the hook for structured output.

use std::fmt::Debug;

/// Ids that may be chosen next: bit `id % 32` of word `id / 32`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
}

impl TokenMask {
    /// A mask that allows nothing, for ids below `vocab`.
    pub fn none(vocab: usize) -> Self {
        Self { words: vec![0; vocab.div_ceil(32)] }
    }

    /// The bits, to be read or copied as a whole. Bits beyond the vocabulary have no effect.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// The bits, to be written.
    pub fn words_mut(&mut self) -> &mut [u32] {
        &mut self.words
    }

    /// Allows an id. One beyond the vocabulary has no effect.
    pub fn allow(&mut self, id: u32) {
        if let Some(word) = self.words.get_mut(id as usize / 32) {
            *word |= 1 << (id % 32);
        }
    }

    /// Forbids an id.
    pub fn forbid(&mut self, id: u32) {
        if let Some(word) = self.words.get_mut(id as usize / 32) {
            *word &= !(1 << (id % 32));
        }
    }

    /// Whether an id may be chosen.
    pub fn allows(&self, id: u32) -> bool {
        self.words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
    }

    /// Allows every id.
    pub fn fill(&mut self) {
        self.words.fill(u32::MAX);
    }

    pub(crate) fn clear(&mut self) {
        self.words.fill(0);
    }
}

/// Which ids a [`Constraint`] leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// All of them: the mask is not looked at.
    All,
    /// Those of the mask.
    Masked,
}

/// Why a constraint cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub String);

/// Decides after every token which ones may follow.
///
/// The engine asks for the mask of the next token while the device computes that token's logits, so
/// that a mask costs time only where it takes longer than a step.
pub trait Constraint: Debug + Send {
    /// Sets the bits of the ids that may come next; `mask` comes with none set. Stop tokens count
    /// like all others: they are allowed where the text may end, and must be where it can only end.
    ///
    /// # Errors
    /// Nothing can follow, or a limit of the constraint is reached; the run ends with the message.
    fn mask(&mut self, mask: &mut TokenMask) -> Result<Allowed, ConstraintError>;

    /// Moves on by a token that was chosen; a stop token is named as well.
    ///
    /// # Errors
    /// The token was not allowed; the run ends with the message.
    fn accept(&mut self, id: u32) -> Result<(), ConstraintError>;

    /// A copy in the same state.
    fn boxed(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.boxed()
    }
}
