//! Where the time of a step goes, kernel by kernel.

use lily_plan::{Live, PlanTable, control};

use super::{Engine, EngineError, SequenceId};
use crate::plan::{Choice, PrefillEnd};

/// A step to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// One decode step; a drawn token follows the rule of the sequence's last run.
    Decode(Choice),
    /// A chunk of this many tokens of a prompt, not the last; of fewer where chunks have fewer, see
    /// [`chunk_at`](super::chunk_at).
    Prefill(usize),
}

/// Time and work of all launches of one kernel in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelCost {
    /// Kernel.
    pub kernel: &'static str,
    /// Launches.
    pub launches: usize,
    /// Seconds.
    pub seconds: f64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Arithmetic operations.
    pub flops: u64,
}

impl Engine {
    /// The decode step of the first sequence behind `position` tokens, with its cost.
    ///
    /// # Errors
    /// There is no plan for it.
    pub fn decode_table(
        &mut self,
        position: usize,
        choice: Choice,
    ) -> Result<PlanTable, EngineError> {
        let plan = self.decode_plan(SequenceId(0), position, choice)?;
        let mut rows = vec![0; self.session.batch * control::WORDS];
        rows.chunks_mut(control::WORDS).for_each(|row| row[control::POSITION] = position as i32);
        let recorded = self.plans.recorded(plan);
        Ok(PlanTable::new(&recorded, &Live::new(recorded.step(), &rows, &[], None)))
    }

    /// Measures a step that starts with `position` tokens in the states, `runs` times. The sequence ends:
    /// its states hold anything afterwards. Empty where the device does not measure.
    ///
    /// # Errors
    /// The sequence is not open, the step does not fit into the context, or the device fails.
    pub fn profile(
        &mut self,
        sequence: SequenceId,
        step: Measured,
        position: usize,
        runs: usize,
    ) -> Result<Vec<KernelCost>, EngineError> {
        let tokens = match step {
            Measured::Decode(_) => 1,
            Measured::Prefill(tokens) => self.next_chunk_of(tokens, position)?,
        };
        let needed = position + tokens;
        // Every run moves the position on, so that the next one may need a place more.
        if needed + runs > self.session.capacity || tokens > self.session.tokens {
            return Err(EngineError::ContextFull {
                needed: needed + runs,
                context: self.session.capacity,
            });
        }
        self.settle(sequence)?;
        self.park();
        let ids: Vec<u32> = (0..tokens as u32).map(|i| i % self.shape.vocab_used as u32).collect();
        let plan = match step {
            Measured::Decode(choice) => self.decode_plan(sequence, position, choice)?,
            Measured::Prefill(_) => self.prefill_plan(sequence, tokens, PrefillEnd::More)?,
        };
        self.sequences[sequence.0].control[control::POSITION] = position as i32;
        self.start_chunk(sequence, &ids)?;
        let mut rows = vec![0; self.session.batch * control::WORDS];
        for (index, row) in rows.chunks_mut(control::WORDS).enumerate() {
            row.copy_from_slice(&self.sequences[index].control);
        }
        let words: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        let recorded = self.plans.recorded(plan);
        let table = PlanTable::new(&recorded, &Live::new(recorded.step(), &rows, &words, None));
        let times = self.device.profile(plan, runs);
        self.give_up(sequence);
        let cost = |time: lily_plan::KernelTime| {
            let own = table.list.iter().filter(|row| row.kernel == time.kernel);
            let (bytes, flops) = own.fold((0, 0), |(bytes, flops), row| {
                (bytes + row.bytes_read + row.bytes_written, flops + row.flops)
            });
            KernelCost {
                kernel: time.kernel,
                launches: time.launches,
                seconds: time.seconds,
                bytes,
                flops,
            }
        };
        Ok(times?.into_iter().map(cost).collect())
    }
}
