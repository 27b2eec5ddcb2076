//! The engine: a model on a device, its sequences, and their states.

mod cache;
mod constraint;
mod error;
mod flight;
mod generate;
mod logprobs;
mod memory;
mod plans;
mod profile;
mod reuse;
mod run;
mod sequence;
mod snapshot;

use std::ops::{ControlFlow, RangeInclusive};

use lily_kernels::{ModelShape, SessionShape};
use lily_plan::{
    Device, Fusions, Launch, MemoryBudget, PlanId, Precision, Weight, Weights, control, read_f32,
};

pub use cache::{CacheMemory, CacheUse};
pub use constraint::{Allowed, Constraint, ConstraintError, TokenMask};
pub use error::EngineError;
pub use generate::{Chosen, Finish, Generation, Progress};
pub use logprobs::TokenLogprobs;
pub use memory::{CONTEXTS, MemoryPlan, check_memory, largest_context};
use memory::{Placed, place};
pub use plans::{chunk_at, every_plan, whole_plan};
pub use profile::{KernelCost, Measured};
pub use run::Run;
pub use sequence::SequenceId;
pub use snapshot::Snapshot;

use crate::plan::{Choice, MatrixBytes, PrefillEnd, SessionBuffers, declare};
use cache::PrefixCache;
use flight::Flight;
use plans::PlanCache;
use sequence::Sequence;

/// How an engine is set up. All memory follows from these numbers and is reserved at the start.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Positions of a sequence.
    pub context: usize,
    /// Sequences.
    pub batch: usize,
    /// Takes fewer sequences if memory has no room for all of them, at least one.
    pub shrink_batch: bool,
    /// Largest prefill chunk, in tokens.
    pub chunk: usize,
    /// Steps that can be taken back.
    pub run_ahead: usize,
    /// Steps submitted before the first of them is read; at most `run_ahead`.
    pub steps_ahead: usize,
    /// Keeps the logits of every prefill row, for teacher-forced evaluation.
    pub all_logits: bool,
    /// What there is for the model, instead of what the device says.
    pub memory: Option<MemoryBudget>,
    /// Memory for beginnings of earlier sequences, which prompts can go on from.
    pub cache: CacheMemory,
    /// Launches to merge; `None` takes what the device wants.
    pub fusions: Option<Fusions>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            context: 4096,
            batch: 1,
            shrink_batch: false,
            chunk: 512,
            run_ahead: 1,
            steps_ahead: 0,
            all_logits: false,
            memory: None,
            cache: CacheMemory::Bytes(0),
            fusions: None,
        }
    }
}

/// Ids of the output ring; more than any device runs ahead.
const OUTPUT_RING: usize = 64;
/// Sizes that the largest prefill chunk may have, in tokens.
pub const CHUNKS: RangeInclusive<usize> = 1..=16384;
/// Tokens of the first forward pass that proves a model usable.
const PROBE_TOKENS: u32 = 4;

/// A model on a device.
pub struct Engine {
    device: Box<dyn Device>,
    shape: ModelShape,
    session: SessionShape,
    options: EngineOptions,
    buffers: SessionBuffers,
    plans: PlanCache,
    cache: PrefixCache,
    sequences: Vec<Sequence>,
    /// One for each sequence.
    flights: Vec<Flight>,
    /// The sequence that a decode step moves on: all others are asleep.
    awake: Option<SequenceId>,
    /// Sequences opened so far.
    opened: u64,
}

impl Engine {
    /// Sets up a model: checks memory, allocates, binds the weights, and proves by a first forward
    /// pass that they give finite numbers.
    pub fn new(
        mut device: Box<dyn Device>,
        shape: ModelShape,
        weights: Weights,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let Placed { options, session, cache_bytes } =
            place(device.as_ref(), &shape, &weights, options)?;
        let cache = PrefixCache::new(cache_bytes);
        let buffers = declare(&shape, &session, &matrix_bytes(&weights));
        device.allocate(&buffers.table, weights)?;
        let mut engine = Self {
            device,
            shape,
            session,
            options,
            buffers,
            plans: PlanCache::default(),
            cache,
            sequences: (0..options.batch).map(|_| Sequence::closed()).collect(),
            flights: (0..options.batch).map(|_| Flight::default()).collect(),
            awake: None,
            opened: 0,
        };
        for sequence in 0..options.batch {
            engine.write_control(SequenceId(sequence))?;
        }
        engine.probe()?;
        Ok(engine)
    }

    /// How it was set up.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Dimensions of the model.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// Dimensions of the session.
    pub fn session(&self) -> &SessionShape {
        &self.session
    }

    /// Name of the device.
    pub fn device_name(&self) -> &str {
        self.device.name()
    }

    /// A forward pass of a few tokens, then one step, in a free sequence, as when the engine was set
    /// up: whether the model can still be run after a failure.
    ///
    /// # Errors
    /// The device fails, a number is not finite, or no sequence is free.
    pub fn probe(&mut self) -> Result<(), EngineError> {
        let sequence = self.open()?;
        let result = self.probe_in(sequence);
        self.close(sequence);
        result
    }

    fn probe_in(&mut self, sequence: SequenceId) -> Result<(), EngineError> {
        let tokens = PROBE_TOKENS.min(self.session.capacity as u32 - 1);
        let ids: Vec<u32> = (0..=tokens).map(|i| i % self.shape.vocab_used as u32).collect();
        let (last, first) = ids.split_last().ok_or(EngineError::EmptyPrompt)?;
        self.prefill(sequence, first, PrefillEnd::Logits)?;
        self.probe_logits(sequence)?;
        self.step(sequence, *last)?;
        self.probe_logits(sequence)?;
        if let Err(EngineError::PoisonedState { buffer, .. }) = self.snapshot(sequence) {
            return Err(EngineError::Probe {
                what: format!("a state in {buffer} that is not finite"),
            });
        }
        Ok(())
    }

    fn probe_logits(&mut self, sequence: SequenceId) -> Result<(), EngineError> {
        let logits = self.logits(sequence)?;
        match logits[..self.shape.vocab_used].iter().find(|l| !l.is_finite()) {
            None => Ok(()),
            Some(value) => Err(EngineError::Probe { what: format!("the logit {value}") }),
        }
    }

    /// Feeds tokens to a sequence in bounded chunks. With [`PrefillEnd::Sample`] the device chooses
    /// the next token, which is pending afterwards.
    pub fn prefill(
        &mut self,
        sequence: SequenceId,
        ids: &[u32],
        end: PrefillEnd,
    ) -> Result<(), EngineError> {
        self.prefill_chunks(sequence, ids, end, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`prefill`](Self::prefill); `after_chunk` gets the number of tokens fed so far and may
    /// stop the work early, which leaves the sequence at that position.
    pub fn prefill_chunks(
        &mut self,
        sequence: SequenceId,
        ids: &[u32],
        end: PrefillEnd,
        after_chunk: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.check_input(sequence, ids)?;
        self.settle(sequence)?;
        let mut fed = 0;
        while fed < ids.len() {
            let position = self.sequence(sequence)?.position();
            let count = self.next_chunk_of(ids.len() - fed, position)?;
            let last = fed + count == ids.len();
            let end = if last || end == PrefillEnd::AllLogits { end } else { PrefillEnd::More };
            self.feed(sequence, &ids[fed..fed + count], end)?;
            fed += count;
            if after_chunk(fed).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Feeds one chunk. Only its own sequence moves, whoever else is awake.
    fn feed(
        &mut self,
        sequence: SequenceId,
        ids: &[u32],
        end: PrefillEnd,
    ) -> Result<(), EngineError> {
        let plan = self.prefill_plan(sequence, ids.len(), end)?;
        self.start_chunk(sequence, ids)?;
        self.submit(sequence, plan, &mut || ())?;
        self.finish_chunk(sequence, ids, end)
    }

    /// Teacher-forced evaluation: `rows(first index, logits)` gets the logits of consecutive inputs,
    /// `[n, vocab]`. Needs an engine with `all_logits`.
    pub fn evaluate(
        &mut self,
        sequence: SequenceId,
        ids: &[u32],
        rows: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), EngineError> {
        self.check_input(sequence, ids)?;
        let mut fed = 0;
        while fed < ids.len() {
            let position = self.sequence(sequence)?.position();
            let most = self.session.logit_rows.min(ids.len() - fed);
            let part = &ids[fed..fed + self.next_chunk_of(most, position)?];
            self.prefill(sequence, part, PrefillEnd::AllLogits)?;
            let count = part.len() * self.shape.vocab;
            let logits = read_f32(self.device.as_mut(), self.buffers.scratch.logits, 0, count)?;
            rows(fed, &logits);
            fed += part.len();
        }
        Ok(())
    }

    /// Feeds one chunk launch by launch; `after(launch, device)` may read any buffer in between.
    pub fn trace_chunk(
        &mut self,
        sequence: SequenceId,
        ids: &[u32],
        after: &mut dyn FnMut(&Launch, &mut dyn Device),
    ) -> Result<(), EngineError> {
        self.check_input(sequence, ids)?;
        self.settle(sequence)?;
        let plan = self.prefill_plan(sequence, ids.len(), PrefillEnd::Logits)?;
        let recorded = self.plans.recorded(plan);
        self.start_chunk(sequence, ids)?;
        for (index, launch) in recorded.launches().iter().enumerate() {
            self.device.run_launch(plan, index)?;
            after(launch, self.device.as_mut());
        }
        self.finish_chunk(sequence, ids, PrefillEnd::Logits)
    }

    /// Logits of the sequence's last step or chunk, `[vocab]`. Sequences share the memory: they must
    /// be read before another one runs.
    pub fn logits(&mut self, sequence: SequenceId) -> Result<Vec<f32>, EngineError> {
        let row = self.sequence(sequence)?.logits_row;
        let row = row.ok_or(EngineError::NoLogits(sequence.0))?;
        let vocab = self.shape.vocab;
        Ok(read_f32(self.device.as_mut(), self.buffers.scratch.logits, row * vocab, vocab)?)
    }

    /// Feeds one token, chosen by the caller, through the decode plan; its logits are read with
    /// [`logits`](Self::logits).
    pub fn step(&mut self, sequence: SequenceId, token: u32) -> Result<(), EngineError> {
        self.settle(sequence)?;
        self.step_beside(sequence, token, &mut || ())
    }

    /// As [`step`](Self::step) of a sequence at rest; `meanwhile` runs while the device is busy, if
    /// it lets the host go on.
    fn step_beside(
        &mut self,
        sequence: SequenceId,
        token: u32,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), EngineError> {
        self.check_input(sequence, &[token])?;
        let position = self.sequence(sequence)?.position();
        let plan = self.decode_plan(sequence, position, Choice::Host)?;
        // A step moves every sequence that is awake.
        self.park();
        let state = &mut self.sequences[sequence.0];
        state.control[control::TOKEN] = token as i32;
        state.control[control::HALT] = 0;
        self.write_control(sequence)?;
        self.submit(sequence, plan, meanwhile)?;
        let ahead = self.session.run_ahead;
        self.sequences[sequence.0].advance(&[token], ahead);
        self.own_logits(sequence, sequence.0..sequence.0 + 1);
        self.sequences[sequence.0].control[control::HALT] = 1;
        self.write_control(sequence)
    }

    fn check_input(&self, sequence: SequenceId, ids: &[u32]) -> Result<(), EngineError> {
        let state = self.sequence(sequence)?;
        if ids.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let vocab = self.shape.vocab;
        if let Some(index) = ids.iter().position(|&t| t as usize >= vocab) {
            return Err(EngineError::Token { token: ids[index], index, vocab });
        }
        let needed = state.position() + ids.len();
        if needed > self.session.capacity {
            return Err(EngineError::ContextFull { needed, context: self.session.capacity });
        }
        Ok(())
    }

    /// Writes the chunk's ids and wakes the sequence.
    fn start_chunk(&mut self, sequence: SequenceId, ids: &[u32]) -> Result<(), EngineError> {
        let words: Vec<i32> = ids.iter().map(|&t| t as i32).collect();
        lily_plan::write_i32(self.device.as_mut(), self.buffers.prompt, 0, &words)?;
        let state = &mut self.sequences[sequence.0];
        state.control[control::COUNT] = ids.len() as i32;
        state.control[control::HALT] = 0;
        self.write_control(sequence)
    }

    /// Books the chunk and puts the sequence to sleep, so that other sequences' steps skip it.
    fn finish_chunk(
        &mut self,
        sequence: SequenceId,
        ids: &[u32],
        end: PrefillEnd,
    ) -> Result<(), EngineError> {
        if end.chooses() {
            self.read_control(sequence)?;
        }
        self.sequences[sequence.0].feed_chunk(ids);
        match end {
            PrefillEnd::More => {}
            PrefillEnd::Sample | PrefillEnd::Draw | PrefillEnd::Logits => {
                self.own_logits(sequence, 0..1);
            }
            PrefillEnd::AllLogits => self.own_logits(sequence, 0..ids.len()),
        }
        let state = &mut self.sequences[sequence.0];
        if end.chooses() {
            if state.control[control::HALT] == control::NON_FINITE {
                let position = state.position();
                self.give_up(sequence);
                return Err(EngineError::NotFinite { position });
            }
            state.pending = u32::try_from(state.control[control::TOKEN]).ok();
        }
        state.control[control::POSITION] = state.position() as i32;
        state.control[control::HALT] = state.control[control::HALT].max(1);
        self.write_control(sequence)
    }

    /// Runs a plan; a failure leaves the sequence without a defined state.
    fn submit(
        &mut self,
        sequence: SequenceId,
        plan: PlanId,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), EngineError> {
        let result = self.device.submit(plan).and_then(|()| {
            meanwhile();
            self.device.wait()
        });
        if result.is_err() {
            self.give_up(sequence);
        }
        Ok(result?)
    }
}

fn session_shape(
    shape: &ModelShape,
    options: &EngineOptions,
    precision: Precision,
) -> Result<SessionShape, EngineError> {
    let range = |name, found: usize, from: usize, to: usize| {
        if (from..=to).contains(&found) {
            return Ok(());
        }
        Err(EngineError::Option { name, found, need: format!("{from} to {to}") })
    };
    range("context", options.context, *CONTEXTS.start(), *CONTEXTS.end())?;
    range("batch", options.batch, 1, 1024)?;
    range("chunk", options.chunk, *CHUNKS.start(), *CHUNKS.end())?;
    range("run_ahead", options.run_ahead, 1, 32)?;
    range("steps_ahead", options.steps_ahead, 0, options.run_ahead)?;
    let tokens = options.chunk.min(options.context);
    Ok(SessionShape {
        batch: options.batch,
        tokens,
        capacity: options.context,
        run_ahead: options.run_ahead,
        splits: crate::plan::splits(options.context),
        ring: OUTPUT_RING,
        logit_rows: if options.all_logits { eval_rows(shape, tokens) } else { options.batch },
        precision,
    })
}

/// Rows of logits kept at once in teacher-forced evaluation: at most 64 MiB of them.
fn eval_rows(shape: &ModelShape, tokens: usize) -> usize {
    ((64 << 20) / (4 * shape.vocab)).clamp(1, tokens)
}

/// Bytes of a weight as it is stored.
fn weight_bytes(weight: &Weight) -> u64 {
    match weight {
        Weight::Matrix(m) => m.total_bytes(),
        Weight::Vector(v) => 4 * v.len() as u64,
    }
}

/// Bytes of every weight matrix, as it is stored.
pub fn matrix_bytes(weights: &Weights) -> MatrixBytes {
    let bytes = |w: &Weight| match w {
        Weight::Matrix(m) => Some(m.total_bytes()),
        Weight::Vector(_) => None,
    };
    weights.iter().filter_map(|(name, w)| Some((name.clone(), bytes(w)?))).collect()
}
