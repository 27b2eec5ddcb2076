//! How much memory a session takes, and the largest context that fits.

use std::ops::RangeInclusive;

use lily_kernels::{ModelShape, SessionShape};
use lily_plan::BufferKind;

use crate::plan::{MatrixBytes, declare, splits};

/// Bytes of a session by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// KV cache, convolution and recurrent state, all sequences.
    pub state: u64,
    /// Work memory of the largest chunk, and the control block.
    pub scratch: u64,
}

impl MemoryPlan {
    /// What a session of this shape takes besides the weights.
    pub fn new(shape: &ModelShape, session: &SessionShape) -> Self {
        let buffers = declare(shape, session, &MatrixBytes::new()).table;
        Self {
            state: buffers.bytes(BufferKind::State),
            scratch: buffers.bytes(BufferKind::Scratch) + buffers.bytes(BufferKind::Control),
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.state + self.scratch
    }
}

/// Contexts that an engine accepts, in positions.
pub const CONTEXTS: RangeInclusive<usize> = 2..=1 << 24;

/// The largest context, in positions, whose session fits into `limit` bytes; 0 if none does. Chunk
/// and blocks of keys shrink with it, as they do when an engine is set up.
pub fn largest_context(shape: &ModelShape, session: &SessionShape, limit: u64) -> usize {
    let fits = |capacity| {
        let tokens = session.tokens.min(capacity);
        let logit_rows = session.logit_rows.min(tokens);
        let session =
            SessionShape { capacity, tokens, logit_rows, splits: splits(capacity), ..*session };
        MemoryPlan::new(shape, &session).total() <= limit
    };
    let (mut largest, mut too_large) = (*CONTEXTS.start(), *CONTEXTS.end() + 1);
    if !fits(largest) {
        return 0;
    }
    // Memory grows with the context: halve what lies between one that fits and one that does not.
    while too_large - largest > 1 {
        let middle = largest + (too_large - largest) / 2;
        if fits(middle) {
            largest = middle;
        } else {
            too_large = middle;
        }
    }
    largest
}
