//! Decode steps that the device chooses by itself: who is awake, and what is on its way to the host.

use std::collections::VecDeque;

use lily_plan::{Fetch, control};

use super::sequence::{ControlRow, Status};
use super::{Engine, EngineError, SequenceId};
use crate::plan::Choice;

/// Steps of a sequence that the host has not taken note of.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// Control rows that were asked for, one a step.
    pub(crate) fetches: VecDeque<Fetch>,
    /// Control rows that came when the sequence was put to sleep.
    pub(crate) ready: VecDeque<ControlRow>,
    /// Position behind all steps that were submitted.
    pub(crate) submitted: usize,
    /// Tokens that were handed out.
    pub(crate) produced: usize,
    /// Why the sequence failed while another one was moved on.
    pub(crate) error: Option<EngineError>,
}

impl Engine {
    /// Wakes a sequence whose states hold `position` tokens, and puts the one that was awake to
    /// sleep: a decode step moves every sequence that is awake.
    pub(crate) fn wake(
        &mut self,
        sequence: SequenceId,
        position: usize,
    ) -> Result<(), EngineError> {
        if self.awake == Some(sequence) {
            return Ok(());
        }
        self.park();
        self.sequences[sequence.0].control[control::HALT] = 0;
        self.write_control(sequence)?;
        self.flights[sequence.0].submitted = position;
        self.awake = Some(sequence);
        Ok(())
    }

    /// Submits a decode step of the sequence that is awake, and asks for its control row.
    pub(crate) fn submit_step(
        &mut self,
        sequence: SequenceId,
        choice: Choice,
    ) -> Result<(), EngineError> {
        let position = self.flights[sequence.0].submitted.min(self.session.capacity - 1);
        let plan = self.decode_plan(sequence, position, choice)?;
        // Which step the row will hold is known when the sequence comes to rest.
        self.own_logits(sequence, sequence.0..sequence.0 + 1);
        self.sequences[sequence.0].logits_row = None;
        let result = self.device.submit(plan);
        if result.is_err() {
            self.give_up(sequence);
        }
        result?;
        let fetch = self.fetch_control(sequence)?;
        let flight = &mut self.flights[sequence.0];
        flight.fetches.push_back(fetch);
        flight.submitted += 1;
        Ok(())
    }

    /// Puts the sequence that is awake to sleep. What it has computed ahead is kept for later. If the
    /// device fails, that sequence has failed; its run hears of it.
    pub(crate) fn park(&mut self) {
        let Some(sequence) = self.awake.take() else { return };
        // Stays so if anything in here goes wrong.
        self.sequences[sequence.0].status = Status::Failed;
        match self.put_to_sleep(sequence) {
            Ok(()) => self.sequences[sequence.0].status = Status::Open,
            Err(error) => {
                self.give_up(sequence);
                self.flights[sequence.0].error = Some(error);
            }
        }
    }

    fn put_to_sleep(&mut self, sequence: SequenceId) -> Result<(), EngineError> {
        while let Some(fetch) = self.flights[sequence.0].fetches.pop_front() {
            self.receive_control(sequence, fetch)?;
            let row = self.sequences[sequence.0].control;
            self.flights[sequence.0].ready.push_back(row);
        }
        self.sequences[sequence.0].control[control::HALT] = 1;
        self.come_to_rest(sequence);
        self.write_control(sequence)
    }

    /// Takes back what a sequence has computed beyond the token that was handed out last, and leaves
    /// it asleep: exactly as if it had run to that point and no further.
    pub(crate) fn settle(&mut self, sequence: SequenceId) -> Result<(), EngineError> {
        self.sequence(sequence)?;
        if self.awake == Some(sequence) {
            self.awake = None;
            self.flights[sequence.0].fetches.clear();
            let waited = self.device.wait();
            if waited.is_err() {
                self.give_up(sequence);
            }
            waited?;
            self.read_control(sequence)?;
        } else if self.flights[sequence.0].ready.is_empty() {
            return Ok(());
        }
        self.come_to_rest(sequence);
        let flight = &mut self.flights[sequence.0];
        flight.ready.clear();
        let produced = flight.produced as i32;
        let state = &mut self.sequences[sequence.0];
        state.control[control::POSITION] = state.position() as i32;
        state.control[control::TOKEN] = state.pending.map_or(control::NO_ID, |id| id as i32);
        state.control[control::PRODUCED] = produced;
        state.control[control::HALT] = 1;
        self.write_control(sequence)
    }

    /// Books where the device has come to, from the control row: which states are left, and whose
    /// logits there are.
    fn come_to_rest(&mut self, sequence: SequenceId) {
        let run_ahead = self.session.run_ahead;
        let state = &mut self.sequences[sequence.0];
        let reached = state.control[control::POSITION].max(0) as usize;
        state.oldest = state.oldest.max(reached.saturating_sub(run_ahead));
        // Otherwise the row holds the logits of a step beyond.
        if reached == state.position() {
            self.own_logits(sequence, sequence.0..sequence.0 + 1);
        }
    }

    /// Forgets steps under way.
    pub(crate) fn ground(&mut self, sequence: SequenceId) {
        if self.awake == Some(sequence) {
            self.awake = None;
        }
        if let Some(flight) = self.flights.get_mut(sequence.0) {
            *flight = Flight::default();
        }
    }
}
