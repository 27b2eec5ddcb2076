//! Compiled plans of an engine, built when they are first needed.

use std::collections::HashMap;
use std::sync::Arc;

use lily_plan::{Fusions, Plan, PlanId};

use super::{Engine, EngineError, SequenceId};
use crate::plan::{Choice, LengthBucket, PlanBuilder, PrefillEnd};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum PlanKey {
    Decode { bucket: LengthBucket, choice: Choice, batch: usize },
    Prefill { tokens: usize, sequence: usize, end: PrefillEnd },
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
        let bucket = LengthBucket::new(position + 1, self.fusions());
        let batch = (sequence.0 + 1).next_power_of_two().min(self.session.batch);
        self.plan(PlanKey::Decode { bucket, choice, batch })
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
        let tokens = count.next_power_of_two().max(8).min(largest);
        self.plan(PlanKey::Prefill { tokens, sequence: sequence.0, end })
    }

    fn fusions(&self) -> Fusions {
        self.options.fusions.unwrap_or(self.device.fusions())
    }

    fn plan(&mut self, key: PlanKey) -> Result<PlanId, EngineError> {
        if let Some(id) = self.plans.ids.get(&key) {
            return Ok(*id);
        }
        let builder = PlanBuilder::new(&self.shape, &self.session, &self.buffers, self.fusions());
        let plan = Arc::new(match key {
            PlanKey::Decode { bucket, choice, batch } => {
                builder.decode_rows(bucket, choice, batch)?
            }
            PlanKey::Prefill { tokens, sequence, end } => builder.prefill(tokens, sequence, end)?,
        });
        let id = self.device.compile(&plan)?;
        self.plans.ids.insert(key, id);
        self.plans.recorded.insert(id, plan);
        Ok(id)
    }
}
