//! How much memory a session takes, and the largest context that fits.

use lily_kernels::{ModelShape, SessionShape};
use lily_plan::BufferKind;

use crate::plan::{MatrixBytes, declare};

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

/// The largest context, in positions, whose session fits into `limit` bytes; 0 if none does.
pub fn largest_context(shape: &ModelShape, session: &SessionShape, limit: u64) -> usize {
    let total = |capacity| MemoryPlan::new(shape, &SessionShape { capacity, ..*session }).total();
    let fixed = total(1);
    let per_position = total(2) - fixed;
    if fixed > limit {
        return 0;
    }
    match (limit - fixed).checked_div(per_position) {
        Some(more) => usize::try_from(more).unwrap_or(usize::MAX).saturating_add(1),
        None => usize::MAX,
    }
}
