//! Going on after a device has started over: what its buffers held is lost, weights and plans are not.
//!
//! The host knows the tokens of every sequence. Each one that was not at fault is fed its tokens again when it is next
//! used, and goes on. What was at work when the device failed is run once more, launch by launch, to name the launch that
//! fails: a device that runs a plan as a whole only says that something in it did.

use lily_plan::{DeviceError, PlanId, control, write_i32};

use super::sequence::Status;
use super::{Engine, EngineError, SequenceId};
use crate::plan::{Choice, PrefillEnd};

/// What a device was doing for a sequence when it failed; the states held the sequence's tokens before.
pub(crate) enum Work<'a> {
    /// A chunk of a prompt.
    Chunk { ids: &'a [u32], plan: PlanId },
    /// Decode steps from the pending token on.
    Steps { choice: Choice },
    /// One step of a token that the host has chosen.
    Step { token: u32 },
}

/// How plans are run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// As always.
    Whole,
    /// Launch by launch, each waited for: an error names the launch.
    OneByOne,
}

impl Engine {
    /// Takes note of a device that has started over, and feeds the sequence its tokens again if they were lost.
    ///
    /// # Errors
    /// The device fails again.
    pub(crate) fn recover(&mut self, sequence: SequenceId) -> Result<(), EngineError> {
        if self.device.losses() != self.losses {
            self.start_over()?;
        }
        match self.sequences.get(sequence.0) {
            Some(state) if state.lost && state.status == Status::Open => {
                self.refill(sequence, How::Whole)
            }
            _ => Ok(()),
        }
    }

    /// Brings every sequence to rest where the host has read it to, and writes what the host keeps for the device.
    fn start_over(&mut self) -> Result<(), EngineError> {
        let losses = self.device.losses();
        for (index, state) in self.sequences.iter_mut().enumerate() {
            let flight = &mut self.flights[index];
            let ran = self.awake == Some(SequenceId(index)) || !flight.ready.is_empty();
            flight.fetches.clear();
            flight.ready.clear();
            if ran {
                state.control[control::PRODUCED] = flight.produced as i32;
            }
            state.control[control::POSITION] = state.position() as i32;
            state.control[control::TOKEN] = state.pending.map_or(control::NO_ID, |id| id as i32);
            state.control[control::HALT] = state.control[control::HALT].max(1);
            state.oldest = state.position();
            state.lost = state.position() > 0;
        }
        self.awake = None;
        for index in 0..self.sequences.len() {
            let (stops, rule) = (self.sequences[index].stops, self.sequences[index].rule);
            let device = self.device.as_mut();
            write_i32(device, self.buffers.stop_ids, index * stops.len(), &stops)?;
            write_i32(device, self.buffers.sampling, index * rule.len(), &rule)?;
            write_i32(
                device,
                self.buffers.control,
                index * control::WORDS,
                &self.sequences[index].control,
            )?;
        }
        self.losses = losses;
        Ok(())
    }

    /// Feeds a sequence the tokens that it held. What follows them, such as a pending token, stays as it is.
    fn refill(&mut self, sequence: SequenceId, how: How) -> Result<(), EngineError> {
        let kept = self.sequences[sequence.0].clone();
        let state = &mut self.sequences[sequence.0];
        state.tokens.clear();
        state.oldest = 0;
        state.control[control::POSITION] = 0;
        state.lost = false;
        let mut chunks = kept.tokens.chunks(self.session.tokens).peekable();
        while let Some(ids) = chunks.next() {
            let wants_logits = kept.logits_row.is_some() && chunks.peek().is_none();
            let end = if wants_logits { PrefillEnd::Logits } else { PrefillEnd::More };
            let plan = self.prefill_plan(sequence, ids.len(), end)?;
            self.start_chunk(sequence, ids)?;
            match how {
                How::Whole => self.submit(sequence, plan, &mut || ())?,
                How::OneByOne => drop(self.launch_by_launch(plan)?),
            }
            self.finish_chunk(sequence, ids, end)?;
        }
        let state = &mut self.sequences[sequence.0];
        state.pending = kept.pending;
        state.control = kept.control;
        self.write_control(sequence)
    }

    /// Finds the launch that made a device start over. `Ok` if the work is done after all: it ran without a fault, and
    /// another sequence was at work when the device failed.
    ///
    /// # Errors
    /// The failure of the launch, or the first one where none can be found; the sequence has failed.
    pub(crate) fn explain(
        &mut self,
        sequence: SequenceId,
        work: &Work<'_>,
        others: bool,
        error: EngineError,
    ) -> Result<(), EngineError> {
        let is_vague = matches!(
            &error,
            EngineError::Device(DeviceError::Unavailable { .. } | DeviceError::Memory { .. })
        );
        if !is_vague || self.device.losses() == self.losses {
            return Err(error);
        }
        self.sequences[sequence.0].status = Status::Open;
        let launches = match self.run_again(sequence, work) {
            Ok(_) if others => return Ok(()),
            result => result,
        };
        self.give_up(sequence);
        Err(match (launches, error) {
            (Err(found @ EngineError::Device(DeviceError::Launch { .. })), _) => found,
            (Ok(launches), EngineError::Device(error)) => {
                EngineError::Transient { launches, reason: error.to_string() }
            }
            (_, error) => error,
        })
    }

    /// Runs work launch by launch, behind the tokens that came before it; gives the number of launches.
    fn run_again(&mut self, sequence: SequenceId, work: &Work<'_>) -> Result<usize, EngineError> {
        self.start_over()?;
        if self.sequences[sequence.0].lost {
            self.refill(sequence, How::OneByOne)?;
        }
        let position = self.sequences[sequence.0].position();
        let plans = match *work {
            Work::Chunk { ids, plan } => {
                self.start_chunk(sequence, ids)?;
                vec![plan]
            }
            Work::Step { token } => {
                self.wake_with(sequence, token as i32)?;
                vec![self.decode_plan(sequence, position, Choice::Host)?]
            }
            Work::Steps { choice } => {
                let token = self.sequences[sequence.0].control[control::TOKEN];
                self.wake_with(sequence, token)?;
                let last = (position + self.options.steps_ahead).min(self.session.capacity - 1);
                let plans = (position..=last).map(|at| self.decode_plan(sequence, at, choice));
                plans.collect::<Result<_, _>>()?
            }
        };
        let mut launches = 0;
        for plan in plans {
            launches += self.launch_by_launch(plan)?;
        }
        Ok(launches)
    }

    fn launch_by_launch(&mut self, plan: PlanId) -> Result<usize, EngineError> {
        let launches = self.plans.recorded(plan).launches().len();
        for index in 0..launches {
            self.device.run_launch(plan, index)?;
        }
        Ok(launches)
    }

    fn wake_with(&mut self, sequence: SequenceId, token: i32) -> Result<(), EngineError> {
        let row = &mut self.sequences[sequence.0].control;
        row[control::TOKEN] = token;
        row[control::HALT] = 0;
        self.write_control(sequence)
    }
}
