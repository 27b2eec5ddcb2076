//! Errors of the engine.

use lily_plan::{DeviceError, PlanError};

use super::ConstraintError;
use crate::sampling::SamplingError;

/// Why the engine cannot do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The session does not fit into memory.
    #[error(
        "a context of {context} tokens needs {needed} bytes besides the weights, but {limit} are \
         available; {}", advice(.largest)
    )]
    Memory {
        /// Positions asked for.
        context: usize,
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        limit: u64,
        /// Largest context that fits; 0 if none does.
        largest: usize,
    },
    /// The weights alone are more than the device can take.
    #[error(
        "the weights need {needed} bytes, but {limit} are available for a model; free memory, or use \
         a smaller model"
    )]
    WeightMemory {
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        limit: u64,
    },
    /// The cache that was asked for is larger than the memory that it would lie in.
    #[error(
        "a cache of {needed} bytes was asked for, but {limit} are available; give --cache-memory a \
         smaller size, or 0 for no cache"
    )]
    CacheMemory {
        /// Bytes asked for.
        needed: u64,
        /// Bytes available.
        limit: u64,
    },
    /// An option outside of its range.
    #[error("{name} is {found}, need {need}")]
    Option {
        /// Option name.
        name: &'static str,
        /// Its value.
        found: usize,
        /// What would be accepted.
        need: String,
    },
    /// A plan does not hold together: a fault of lily, not of the checkpoint.
    #[error("the plan is not valid: {0}; please report this with the output of `lily inspect`")]
    Plan(#[from] PlanError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No token could be chosen.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The model's first forward pass is not finite.
    #[error(
        "the first forward pass of this checkpoint gives {what}; the weights are damaged or were \
         converted wrongly, download or convert them again"
    )]
    Probe {
        /// What was found.
        what: String,
    },
    /// Every sequence is taken.
    #[error("all {0} sequences are in use; close one, or start with more")]
    NoSequence(usize),
    /// The sequence is closed, or an earlier failure left it without a defined state.
    #[error("sequence {0} is not open or has failed; open a new one")]
    BadSequence(usize),
    /// A run's sequence was closed, restored or fed by others since the run's last step.
    #[error("sequence {0} was changed while a run was using it; start a new run")]
    StaleRun(usize),
    /// What the text must look like cannot be kept up.
    #[error("the required format ends the text here: {0}; relax it, or ask again")]
    Constraint(#[from] ConstraintError),
    /// Nothing computed logits for the sequence, or another one has used their memory since.
    #[error(
        "sequence {0} has no logits; end a chunk with them, and read them before another sequence runs"
    )]
    NoLogits(usize),
    /// A token id outside of the vocabulary.
    #[error("token {token} at index {index} is outside of the vocabulary of {vocab} tokens")]
    Token {
        /// The id.
        token: u32,
        /// Its index in the input.
        index: usize,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// Nothing to read: a prompt needs at least one token.
    #[error("the prompt is empty, need at least one token")]
    EmptyPrompt,
    /// More tokens than the context holds.
    #[error(
        "{needed} tokens do not fit into the context of {context}; shorten the prompt or use a larger --ctx"
    )]
    ContextFull {
        /// Positions needed.
        needed: usize,
        /// Positions configured.
        context: usize,
    },
    /// States are kept for a few steps only.
    #[error("cannot step back from position {from} to {to}: states before {oldest} are gone")]
    StepBack {
        /// Current position.
        from: usize,
        /// Position asked for.
        to: usize,
        /// Oldest position whose state exists.
        oldest: usize,
    },
    /// A state with NaN or infinity is never saved.
    #[error("the state of sequence {sequence} is not finite at {buffer}; it is not saved")]
    PoisonedState {
        /// The sequence.
        sequence: usize,
        /// Buffer name.
        buffer: String,
    },
    /// A saved state of another model, or of a device with other element types.
    #[error(
        "the saved state belongs to another model or precision; restore it where it was saved, or \
         feed its tokens again"
    )]
    ForeignSnapshot,
    /// The device met logits that are not finite; no token was chosen.
    #[error(
        "the model's output at position {position} is not finite; the request ends without a token"
    )]
    NotFinite {
        /// Position of the token that would have been chosen.
        position: usize,
    },
}

impl EngineError {
    /// Whether no engine of this program can use the device any more.
    pub fn is_device_lost(&self) -> bool {
        matches!(self, Self::Device(DeviceError::Lost { .. }))
    }
}

fn advice(largest: &usize) -> String {
    match largest {
        0 => "no context fits: free memory or use a smaller chunk".into(),
        n => format!("the largest context that fits is {n}: start with --ctx {n}"),
    }
}
