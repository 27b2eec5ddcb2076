//! Compiled plans of an engine, built when they are first needed; and all that it may need.

use std::collections::HashMap;
use std::sync::Arc;

use lily_kernels::{ModelShape, SessionShape};
use lily_plan::{Fusions, Plan, PlanError, PlanId, Precision};

use super::{Engine, EngineError, EngineOptions, SequenceId, session_shape};
use crate::plan::{Choice, LengthBucket, MatrixBytes, PlanBuilder, PrefillEnd, declare};

/// Tokens of the smallest plan for a prefill chunk.
const SMALLEST_CHUNK: usize = 8;
/// Chunks are made no smaller than this to be one submission: with fewer tokens a chunk takes longer for reading the
/// experts' weights than for multiplying with them, which costs more than another submission.
const SMALLEST_WHOLE: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum PlanKey {
    Decode { bucket: LengthBucket, choice: Choice, batch: usize },
    Prefill { tokens: usize, sequence: usize, end: PrefillEnd },
}

impl PlanKey {
    /// The key of a decode step.
    fn decode(
        session: &SessionShape,
        fusions: Fusions,
        sequence: usize,
        position: usize,
        choice: Choice,
    ) -> Self {
        let bucket = LengthBucket::new(position + 1, fusions);
        let batch = (sequence + 1).next_power_of_two().min(session.batch);
        Self::Decode { bucket, choice, batch }
    }

    fn build(self, builder: &PlanBuilder<'_>) -> Result<Plan, PlanError> {
        match self {
            Self::Decode { bucket, choice, batch } => builder.decode_rows(bucket, choice, batch),
            Self::Prefill { tokens, sequence, end } => builder.prefill(tokens, sequence, end),
        }
    }

    /// Every key of an engine, but for the sequence of a chunk, which only changes where it reads.
    fn all(session: &SessionShape, fusions: Fusions) -> Vec<Self> {
        let mut keys = Vec::new();
        let batches = (0..).map(|power| (1 << power).min(session.batch));
        let batches = take_until(batches, session.batch);
        let mut buckets: Vec<LengthBucket> = Vec::new();
        for length in
            take_until((0..).map(|power| (1 << power).min(session.capacity)), session.capacity)
        {
            let bucket = LengthBucket::new(length, fusions);
            if !buckets.contains(&bucket) {
                buckets.push(bucket);
            }
        }
        for batch in batches {
            for &bucket in &buckets {
                for choice in [Choice::Device, Choice::Draw, Choice::Host] {
                    keys.push(Self::Decode { bucket, choice, batch });
                }
            }
        }
        let ends = [PrefillEnd::More, PrefillEnd::Sample, PrefillEnd::Draw, PrefillEnd::Logits];
        let sizes = (0..).map(|power| chunk_bucket(1 << power, session.tokens));
        for tokens in take_until(sizes, session.tokens) {
            keys.extend(ends.map(|end| Self::Prefill { tokens, sequence: 0, end }));
        }
        keys
    }
}

/// Growing numbers up to the one that is `last`, each once.
fn take_until(numbers: impl Iterator<Item = usize>, last: usize) -> Vec<usize> {
    let mut taken = Vec::new();
    for number in numbers {
        if taken.last() != Some(&number) {
            taken.push(number);
        }
        if number == last {
            break;
        }
    }
    taken
}

/// Tokens of the plan that serves a chunk of `count`.
fn chunk_bucket(count: usize, largest: usize) -> usize {
    count.next_power_of_two().max(SMALLEST_CHUNK).min(largest)
}

/// Tokens of a chunk behind `position` tokens: `largest`, or the largest size below it, of those that there is a plan for,
/// that is one submission there; but no fewer than 128 if `largest` is not. `whole_below` says it of a size, see
/// [`lily_plan::WholeBelow`]; [`whole_plan`] is the plan to ask about.
///
/// # Errors
/// What `whole_below` says.
pub fn chunk_at<E>(
    largest: usize,
    position: usize,
    mut whole_below: impl FnMut(usize) -> Result<usize, E>,
) -> Result<usize, E> {
    let mut tokens = largest;
    while tokens > SMALLEST_WHOLE && position >= whole_below(tokens)? {
        tokens = (tokens.next_power_of_two() / 2).max(SMALLEST_WHOLE);
    }
    Ok(tokens)
}

/// The plan that takes longest of those for a chunk of `tokens` tokens, but for the one with the logits of all of them.
///
/// # Errors
/// There is no such plan.
pub fn whole_plan(builder: &PlanBuilder<'_>, tokens: usize) -> Result<Plan, PlanError> {
    builder.prefill(tokens, 0, PrefillEnd::Draw)
}

/// Calls `with` with each kind of plan that an engine with these options runs for prompts and answers: for
/// whoever prepares what they need, such as compiled kernels. `matrices` are the bytes of the weights.
///
/// # Errors
/// An option is outside of its range.
pub fn every_plan(
    shape: &ModelShape,
    options: &EngineOptions,
    precision: Precision,
    fusions: Fusions,
    matrices: &MatrixBytes,
    with: &mut dyn FnMut(&Plan),
) -> Result<(), EngineError> {
    let session = session_shape(shape, options, precision)?;
    let buffers = declare(shape, &session, matrices);
    let builder = PlanBuilder::new(shape, &session, &buffers, fusions);
    for key in PlanKey::all(&session, fusions) {
        with(&key.build(&builder)?);
    }
    Ok(())
}

#[derive(Default)]
pub(crate) struct PlanCache {
    ids: HashMap<PlanKey, PlanId>,
    recorded: HashMap<PlanId, Arc<Plan>>,
    /// [`lily_plan::Device::whole_below`] by the tokens of a chunk.
    whole_below: HashMap<usize, usize>,
}

impl PlanCache {
    /// The plan behind a compiled one.
    pub(crate) fn recorded(&self, id: PlanId) -> Arc<Plan> {
        self.recorded[&id].clone()
    }
}

impl Engine {
    /// The decode plan for a step of `sequence` that starts with `position` tokens in the states. It
    /// has no more rows than it takes to reach the sequence: a row that is asleep costs a little on
    /// some devices, and the first sequence shall be as fast as if it were the only one.
    pub(crate) fn decode_plan(
        &mut self,
        sequence: SequenceId,
        position: usize,
        choice: Choice,
    ) -> Result<PlanId, EngineError> {
        self.plan(PlanKey::decode(&self.session, self.fusions(), sequence.0, position, choice))
    }

    /// The prefill plan for `count` tokens: of the smallest bucket that holds them.
    pub(crate) fn prefill_plan(
        &mut self,
        sequence: SequenceId,
        count: usize,
        end: PrefillEnd,
    ) -> Result<PlanId, EngineError> {
        let largest = match end {
            PrefillEnd::AllLogits => self.session.tokens.min(self.session.logit_rows),
            _ => self.session.tokens,
        };
        let tokens = chunk_bucket(count, largest);
        self.plan(PlanKey::Prefill { tokens, sequence: sequence.0, end })
    }

    /// Tokens of the next chunk of a sequence, if `count` are left of its prompt and `position` are read.
    ///
    /// # Errors
    /// There is no plan for a chunk.
    pub(crate) fn next_chunk_of(
        &mut self,
        count: usize,
        position: usize,
    ) -> Result<usize, EngineError> {
        let largest = chunk_bucket(count, self.session.tokens);
        Ok(chunk_at(largest, position, |tokens| self.whole_below(tokens))?.min(count))
    }

    fn whole_below(&mut self, tokens: usize) -> Result<usize, EngineError> {
        let Some(whole_below) = self.device.whole_below() else { return Ok(usize::MAX) };
        if let Some(&position) = self.plans.whole_below.get(&tokens) {
            return Ok(position);
        }
        let builder = PlanBuilder::new(&self.shape, &self.session, &self.buffers, self.fusions());
        let position = whole_below(&whole_plan(&builder, tokens)?);
        self.plans.whole_below.insert(tokens, position);
        Ok(position)
    }

    fn fusions(&self) -> Fusions {
        self.options.fusions.unwrap_or(self.device.fusions())
    }

    fn plan(&mut self, key: PlanKey) -> Result<PlanId, EngineError> {
        if let Some(id) = self.plans.ids.get(&key) {
            return Ok(*id);
        }
        let builder = PlanBuilder::new(&self.shape, &self.session, &self.buffers, self.fusions());
        let plan = Arc::new(key.build(&builder)?);
        let id = self.device.compile(&plan)?;
        self.plans.ids.insert(key, id);
        self.plans.recorded.insert(id, plan);
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R21.
    #[test]
    fn chunks_shrink_as_the_context_grows_so_that_each_is_one_submission() {
        let at = |largest, position, below: &dyn Fn(usize) -> usize| {
            chunk_at::<()>(largest, position, |tokens| Ok(below(tokens))).unwrap()
        };
        // Twice the tokens reach half as far.
        let below = |tokens: usize| 1_000_000 / tokens;
        for largest in [2048, 1000, 300, 128, 100, 8, 3] {
            let mut last = largest;
            for position in 0..10_000 {
                let tokens = at(largest, position, &below);
                assert!(tokens <= last && tokens >= SMALLEST_WHOLE.min(largest), "{tokens}");
                assert!(position < below(tokens) || tokens <= SMALLEST_WHOLE);
                // A size that there is a plan for, so that no row of it is idle.
                assert_eq!(chunk_bucket(tokens, largest), tokens.max(SMALLEST_CHUNK.min(largest)));
                let twice = (2 * tokens).min(largest);
                assert!(twice == tokens || position >= below(twice), "{tokens} {position}");
                last = tokens;
            }
            assert_eq!(last, SMALLEST_WHOLE.min(largest));
        }
        // On a device that takes its time, and on one that is too slow for anything.
        assert_eq!(at(16_384, 1 << 44, &|_| usize::MAX), 16_384);
        assert_eq!(at(16_384, 0, &|_| 0), SMALLEST_WHOLE);
        assert_eq!(at(64, 0, &|_| 0), 64);
        assert_eq!(chunk_at(512, 0, |_| Err("no plan")), Err("no plan"));
    }

    #[test]
    fn every_step_and_every_chunk_of_an_engine_has_a_key_in_the_list() {
        for (batch, tokens, capacity) in
            [(1, 8, 40), (3, 100, 1500), (5, 512, 9000), (4, 48, 40_000)]
        {
            let session = SessionShape {
                batch,
                tokens,
                capacity,
                run_ahead: 1,
                splits: crate::plan::splits(capacity),
                ring: 8,
                logit_rows: batch,
                precision: Precision::BF16,
            };
            for short in [false, true] {
                let fusions = Fusions { short, ..Fusions::default() };
                let all = PlanKey::all(&session, fusions);
                for sequence in 0..batch {
                    for position in 0..capacity {
                        let choice = Choice::Draw;
                        let key = PlanKey::decode(&session, fusions, sequence, position, choice);
                        assert!(all.contains(&key), "{key:?}");
                    }
                }
                for count in 1..=tokens {
                    let tokens = chunk_bucket(count, tokens);
                    let key = PlanKey::Prefill { tokens, sequence: 0, end: PrefillEnd::Draw };
                    assert!(all.contains(&key), "{key:?}");
                }
                let distinct: std::collections::HashSet<_> = all.iter().collect();
                assert_eq!(distinct.len(), all.len());
            }
        }
    }
}
