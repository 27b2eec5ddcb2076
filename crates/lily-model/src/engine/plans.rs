//! Compiled plans of an engine, built when they are first needed; and all that it may need.

use std::collections::HashMap;
use std::sync::Arc;

use lily_kernels::{ModelShape, SessionShape, attn_flash};
use lily_plan::{Fusions, Plan, PlanError, PlanId, Precision};

use super::{Engine, EngineError, EngineOptions, SequenceId, session_shape};
use crate::plan::{Choice, LengthBucket, MatrixBytes, PlanBuilder, PrefillEnd, declare};

/// Tokens of the smallest plan for a prefill chunk.
const SMALLEST_CHUNK: usize = 8;

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

/// Most tokens of a chunk behind `position` tokens, at most `largest`: attention of a layer is one launch, whose work
/// grows with what is in front of the chunk, and no launch may have more than `flops` operations (see
/// [`lily_plan::Device::launch_flops`]). Less than `largest`, it is a size that there is a plan for. The smallest plan's
/// size is never refused.
pub fn chunk_at(shape: &ModelShape, largest: usize, position: usize, flops: Option<u64>) -> usize {
    let Some(flops) = flops else { return largest };
    let fits = |tokens: usize| {
        // Token t of the chunk sees `position + t + 1` keys.
        let keys = tokens as u64 * (2 * position as u64 + tokens as u64 + 1) / 2;
        keys.saturating_mul(attn_flash::flops_per_key(shape)) <= flops
    };
    let mut tokens = largest;
    while tokens > SMALLEST_CHUNK && !fits(tokens) {
        tokens = (tokens.next_power_of_two() / 2).max(SMALLEST_CHUNK);
    }
    tokens
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

    /// Most tokens of a chunk behind `position` tokens.
    pub(crate) fn chunk_at(&self, position: usize) -> usize {
        chunk_at(&self.shape, self.session.tokens, position, self.device.launch_flops())
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
    fn chunks_shrink_as_the_context_grows_so_that_attention_stays_within_the_bound() {
        let shape = ModelShape {
            hidden: 64,
            layers: vec![lily_kernels::Mixer::Attention],
            vocab: 64,
            vocab_used: 64,
            q_heads: 4,
            kv_heads: 2,
            head_dim: 32,
            rotary_dim: 8,
            rope_theta: 1e4,
            k_heads: 1,
            v_heads: 1,
            k_dim: 32,
            v_dim: 32,
            conv_width: 4,
            experts: 2,
            top_k: 1,
            inner: 64,
            rms_eps: 1e-6,
        };
        let flops = |tokens: usize, position: usize| {
            let keys = (0..tokens).map(|token| position + token + 1).sum::<usize>();
            keys as u64 * 4 * 4 * 32
        };
        assert_eq!(chunk_at(&shape, 512, 1 << 20, None), 512);
        for (largest, bound) in [(512, flops(512, 1000)), (100, flops(64, 300)), (8, 1), (3, 1)] {
            let mut last = largest;
            for position in 0..5000 {
                let tokens = chunk_at(&shape, largest, position, Some(bound));
                assert!(tokens <= last && tokens >= SMALLEST_CHUNK.min(largest), "{tokens}");
                assert!(flops(tokens, position) <= bound || tokens <= SMALLEST_CHUNK);
                // A size that there is a plan for, so that no row of it is idle.
                assert_eq!(chunk_bucket(tokens, largest), tokens.max(SMALLEST_CHUNK.min(largest)));
                let twice = (2 * tokens).min(largest);
                assert!(twice == tokens || flops(twice, position) > bound, "{tokens} {position}");
                last = tokens;
            }
            assert!(largest <= SMALLEST_CHUNK || last < largest);
        }
        // No bound is so large, or context so long, that the sums overflow.
        assert_eq!(chunk_at(&shape, 16_384, 1 << 44, Some(u64::MAX - 1)), 1024);
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
