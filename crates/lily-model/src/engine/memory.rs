//! How much memory a session takes, and the largest context that fits.

use std::ops::RangeInclusive;

use lily_kernels::{Mixer, ModelShape, SessionShape};
use lily_plan::{BufferKind, Device, MemoryBudget, Weights};

use super::{CacheMemory, EngineError, EngineOptions, session_shape, weight_bytes};
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

/// A session that fits into memory.
pub(super) struct Placed {
    /// As they were given, with a batch that fits.
    pub(super) options: EngineOptions,
    pub(super) session: SessionShape,
    pub(super) cache_bytes: u64,
}

/// Finds the room for a model and its session.
pub(super) fn place(
    device: &dyn Device,
    shape: &ModelShape,
    weights: &Weights,
    mut options: EngineOptions,
) -> Result<Placed, EngineError> {
    let mut session = session_shape(shape, &options, device.precision())?;
    let room = Room {
        budget: match options.memory {
            None => device.memory_budget(weights)?,
            given => given,
        },
        host: device.host_memory()?,
        in_place: weights.values().map(weight_bytes).sum(),
        cache: options.cache,
    };
    room.check_cache()?;
    while let Err(error) = room.check(shape, &session) {
        if !options.shrink_batch || options.batch == 1 {
            return Err(error);
        }
        options.batch -= 1;
        session = session_shape(shape, &options, device.precision())?;
    }
    let cache_bytes = room.cache_bytes(shape, &session);
    Ok(Placed { options, session, cache_bytes })
}

/// Whether a device has room for a model with these options now; nothing is allocated.
///
/// # Errors
/// What [`Engine::new`](super::Engine::new) would say: a session, weights or a cache that do not fit, or an option outside of its
/// range.
pub fn check_memory(
    device: &dyn Device,
    shape: &ModelShape,
    weights: &Weights,
    options: &EngineOptions,
) -> Result<(), EngineError> {
    place(device, shape, weights, *options).map(|_| ())
}

/// Most bytes that a cache takes of what is left, unless it is told otherwise.
const MOST_SPARE: u64 = 4 << 30;
/// The same where the system does not say what is left.
const UNKNOWN_SPARE: u64 = 1 << 30;
/// Tokens behind which a state is saved at least, for a cache to be of any use.
const LEAST_TOKENS: u64 = 256;

/// What an engine may take.
struct Room {
    budget: Option<MemoryBudget>,
    /// Bytes for the cache, where they are not part of `budget`.
    host: Option<u64>,
    /// Bytes of weights that may be used in place: they should stay in memory, but are not part of
    /// `budget`.
    in_place: u64,
    cache: CacheMemory,
}

impl Room {
    /// Bytes that were asked for the cache, and the part of them that `budget` has to give.
    fn asked(&self) -> (u64, u64) {
        match (self.cache, self.host) {
            (CacheMemory::Spare, _) => (0, 0),
            (CacheMemory::Bytes(bytes), None) => (bytes, bytes),
            (CacheMemory::Bytes(bytes), Some(_)) => (bytes, 0),
        }
    }

    /// Refuses a cache that memory of its own has no room for.
    fn check_cache(&self) -> Result<(), EngineError> {
        match (self.asked().0, self.host) {
            (needed, Some(limit)) if needed > limit => {
                Err(EngineError::CacheMemory { needed, limit })
            }
            _ => Ok(()),
        }
    }

    /// Refuses a session that does not fit.
    fn check(&self, shape: &ModelShape, session: &SessionShape) -> Result<(), EngineError> {
        let Some(MemoryBudget { limit, weights }) = self.budget else { return Ok(()) };
        let for_model = limit
            .checked_sub(weights)
            .ok_or(EngineError::WeightMemory { needed: weights, limit })?;
        let cache = self.asked().1;
        let available = for_model
            .checked_sub(cache)
            .ok_or(EngineError::CacheMemory { needed: cache, limit: for_model })?;
        let needed = MemoryPlan::new(shape, session).total();
        if needed <= available {
            return Ok(());
        }
        Err(EngineError::Memory {
            context: session.capacity,
            needed,
            limit: available,
            largest: largest_context(shape, session, available),
        })
    }

    /// Bytes of the cache beside a session that fits.
    fn cache_bytes(&self, shape: &ModelShape, session: &SessionShape) -> u64 {
        if let CacheMemory::Bytes(bytes) = self.cache {
            return bytes;
        }
        let spare = match (self.host, self.budget) {
            (Some(left), _) => left / 2,
            (None, None) => UNKNOWN_SPARE,
            (None, Some(MemoryBudget { limit, weights })) => {
                let taken = weights.max(self.in_place) + MemoryPlan::new(shape, session).total();
                limit.saturating_sub(taken) / 2
            }
        };
        let bytes = spare.min(MOST_SPARE);
        if bytes < least_cache(shape, session) { 0 } else { bytes }
    }
}

/// Bytes of one saved state and a few rows.
fn least_cache(shape: &ModelShape, session: &SessionShape) -> u64 {
    let attention = shape.layers.iter().filter(|mixer| **mixer == Mixer::Attention).count();
    let gdn = shape.layers.len() - attention;
    let state =
        shape.v_heads * shape.v_dim * shape.k_dim + shape.conv_channels() * (shape.conv_width - 1);
    let row = attention * shape.kv_heads * shape.head_dim * 2;
    let row_bytes = row as u64 * session.precision.kv.bytes().unwrap_or(4) as u64;
    4 * (gdn * state) as u64 + LEAST_TOKENS * row_bytes
}
