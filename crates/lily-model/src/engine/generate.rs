//! The generation loop.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use lily_plan::{control, write_i32};

use super::{Engine, EngineError, SequenceId};
use crate::plan::{Choice, PrefillEnd};
use crate::sampling::{Sampling, TokenCounts};

/// What to generate.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Most tokens to choose.
    pub limit: usize,
    /// Tokens that end the text; they are handed out like any other.
    pub stop_ids: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
}

/// How far a generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many tokens of the prompt are read; comes after every chunk.
    Prefilled(usize),
    /// A token was chosen.
    Token(u32),
}

impl Progress {
    /// The chosen token, if this is one.
    pub fn token(self) -> Option<u32> {
        match self {
            Self::Token(id) => Some(id),
            Self::Prefilled(_) => None,
        }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token was chosen.
    Stop(u32),
    /// `limit` tokens were chosen, or the context is full.
    Length,
    /// The caller asked for it.
    Cancelled,
}

impl Engine {
    /// Feeds `prompt`, then chooses tokens until a stop token, the limit, or `on_progress` breaks;
    /// a break inside the prompt ends the work after the chunk, without a token.
    ///
    /// Afterwards the states hold the prompt and all chosen tokens but the last, which is pending:
    /// exactly as if the sequence had run to that point and no further.
    pub fn generate(
        &mut self,
        sequence: SequenceId,
        prompt: &[u32],
        generation: &Generation,
        on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Finish, EngineError> {
        generation.sampling.validate()?;
        if generation.limit == 0 {
            let read = self.read_prompt(sequence, prompt, PrefillEnd::More, on_progress)?;
            return Ok(if read.is_break() { Finish::Cancelled } else { Finish::Length });
        }
        let on_device =
            generation.sampling.is_plain_greedy() && generation.stop_ids.len() <= control::STOP_IDS;
        if on_device {
            self.generate_on_device(sequence, prompt, generation, on_progress)
        } else {
            self.generate_on_host(sequence, prompt, generation, on_progress)
        }
    }

    /// Greedy: the device chooses, stops by itself, and may run ahead of what the host has read.
    fn generate_on_device(
        &mut self,
        sequence: SequenceId,
        prompt: &[u32],
        generation: &Generation,
        on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Finish, EngineError> {
        self.set_stops(sequence, generation)?;
        if self.read_prompt(sequence, prompt, PrefillEnd::Sample, on_progress)?.is_break() {
            return Ok(Finish::Cancelled);
        }
        let start = self.sequence(sequence)?.position();
        let mut submitted = 0;
        let mut ahead = VecDeque::with_capacity(1 + self.options.steps_ahead);
        for read in 0.. {
            if let Some(fetch) = ahead.pop_front() {
                self.receive_control(sequence, fetch)?;
            }
            let token = self.chosen(sequence, start, read)?;
            let position = start + read;
            if let Some(finish) =
                self.finish_after(generation, token, read + 1, position, on_progress)
            {
                self.settle(sequence, position, token)?;
                return Ok(finish);
            }
            if read == 0 {
                self.sequences[sequence.0].control[control::HALT] = 0;
                self.write_control(sequence)?;
            }
            while submitted <= read + self.options.steps_ahead {
                self.submit_step(sequence, start + submitted)?;
                ahead.push_back(self.fetch_control(sequence)?);
                submitted += 1;
            }
            self.sequences[sequence.0].tokens.push(token);
        }
        Ok(Finish::Length)
    }

    /// Samples on the host, one step at a time.
    fn generate_on_host(
        &mut self,
        sequence: SequenceId,
        prompt: &[u32],
        generation: &Generation,
        on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Finish, EngineError> {
        let mut counts = TokenCounts::default();
        self.sequence(sequence)?.tokens.iter().for_each(|&t| counts.add_prompt(t));
        prompt.iter().for_each(|&t| counts.add_prompt(t));
        if self.read_prompt(sequence, prompt, PrefillEnd::Logits, on_progress)?.is_break() {
            return Ok(Finish::Cancelled);
        }
        for produced in 1.. {
            let position = self.sequence(sequence)?.position();
            let logits = self.logits(sequence)?;
            let chosen =
                generation.sampling.choose(&logits, self.shape.vocab_used, &counts, position);
            if chosen.is_err() {
                self.give_up(sequence);
            }
            let token = chosen?;
            counts.add_produced(token);
            self.sequences[sequence.0].pending = Some(token);
            if let Some(finish) =
                self.finish_after(generation, token, produced, position, on_progress)
            {
                return Ok(finish);
            }
            self.step(sequence, token)?;
        }
        Ok(Finish::Length)
    }

    /// Feeds the prompt; breaks if the caller stops after a chunk that is not the last.
    fn read_prompt(
        &mut self,
        sequence: SequenceId,
        prompt: &[u32],
        end: PrefillEnd,
        on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, EngineError> {
        let mut flow = ControlFlow::Continue(());
        self.prefill_chunks(sequence, prompt, end, &mut |fed| {
            let asked = on_progress(Progress::Prefilled(fed));
            if fed < prompt.len() {
                flow = asked;
            }
            flow
        })?;
        Ok(flow)
    }

    /// Hands out a token; says whether it is the last. `position` tokens are in the states.
    fn finish_after(
        &self,
        generation: &Generation,
        token: u32,
        produced: usize,
        position: usize,
        on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Option<Finish> {
        let cancelled = on_progress(Progress::Token(token)).is_break();
        if generation.stop_ids.contains(&token) {
            Some(Finish::Stop(token))
        } else if produced >= generation.limit || position >= self.session.capacity {
            Some(Finish::Length)
        } else if cancelled {
            Some(Finish::Cancelled)
        } else {
            None
        }
    }

    /// Writes limit and stop list, and starts counting.
    fn set_stops(
        &mut self,
        sequence: SequenceId,
        generation: &Generation,
    ) -> Result<(), EngineError> {
        let mut ids = [control::NO_ID; control::STOP_IDS];
        for (to, &id) in ids.iter_mut().zip(&generation.stop_ids) {
            *to = i32::try_from(id).unwrap_or(control::NO_ID);
        }
        self.sequence(sequence)?;
        let first = sequence.0 * control::STOP_IDS;
        write_i32(self.device.as_mut(), self.buffers.stop_ids, first, &ids)?;
        let row = &mut self.sequences[sequence.0].control;
        row[control::PRODUCED] = 0;
        row[control::LIMIT] = i32::try_from(generation.limit).unwrap_or(i32::MAX);
        self.write_control(sequence)
    }

    /// Submits a decode step; `position` tokens are in the states before it.
    fn submit_step(&mut self, sequence: SequenceId, position: usize) -> Result<(), EngineError> {
        let plan = self.decode_plan(position.min(self.session.capacity - 1), Choice::Device)?;
        let result = self.device.submit(plan);
        if result.is_err() {
            self.give_up(sequence);
        }
        Ok(result?)
    }

    /// The `index`-th chosen token, from the control row after its step; `start` tokens were in the
    /// states when the first was chosen.
    fn chosen(
        &mut self,
        sequence: SequenceId,
        start: usize,
        index: usize,
    ) -> Result<u32, EngineError> {
        let row = self.sequences[sequence.0].control;
        match u32::try_from(row[control::TOKEN]) {
            Ok(token) if row[control::PRODUCED] as usize > index => Ok(token),
            // The device halts before the host does only where it met a NaN.
            _ => {
                self.give_up(sequence);
                Err(EngineError::NotFinite { position: start + index })
            }
        }
    }

    /// Puts the sequence to sleep at `position` with `pending` as the next token; steps that ran
    /// beyond it are taken back.
    fn settle(
        &mut self,
        sequence: SequenceId,
        position: usize,
        pending: u32,
    ) -> Result<(), EngineError> {
        let waited = self.device.wait();
        if waited.is_err() {
            self.give_up(sequence);
        }
        waited?;
        let generated = position > self.sequence(sequence)?.oldest;
        self.read_control(sequence)?;
        let run_ahead = self.session.run_ahead;
        let state = &mut self.sequences[sequence.0];
        let reached = state.control[control::POSITION] as usize;
        state.oldest = state.oldest.max(reached.saturating_sub(run_ahead));
        state.pending = Some(pending);
        state.control[control::POSITION] = position as i32;
        state.control[control::TOKEN] = pending as i32;
        state.control[control::HALT] = 1;
        if generated {
            self.own_logits(sequence, sequence.0..sequence.0 + 1);
        }
        if reached != position {
            // The row holds the logits of a step that is taken back.
            self.sequences[sequence.0].logits_row = None;
        }
        self.write_control(sequence)
    }
}
