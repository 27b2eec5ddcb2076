//! What the host knows of a sequence.

use std::ops::Range;

use lily_plan::{DeviceError, Fetch, control, write_i32};

use super::{Engine, EngineError};

/// A sequence of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub(crate) usize);

impl SequenceId {
    /// Its row in the control block.
    pub fn index(self) -> usize {
        self.0
    }
}

/// A row of the control block.
pub(crate) type ControlRow = [i32; control::WORDS];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Closed,
    Open,
    /// A device error left the state undefined.
    Failed,
}

/// Host side of a sequence. The control row is a copy of the device's, current between submissions.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) status: Status,
    /// Tells one use of the sequence from another.
    pub(crate) opened: u64,
    /// Tokens in the states.
    pub(crate) tokens: Vec<u32>,
    /// Chosen, not fed yet.
    pub(crate) pending: Option<u32>,
    /// Oldest position whose recurrent state is still in the ring.
    pub(crate) oldest: usize,
    pub(crate) control: ControlRow,
    /// Row of the logits buffer that holds this sequence's last logits, until another writes there.
    pub(crate) logits_row: Option<usize>,
    /// Tokens of the last use of this sequence whose keys and values are still there; none once
    /// anything was fed.
    pub(crate) resident: Vec<u32>,
}

impl Sequence {
    pub(crate) fn closed() -> Self {
        let mut control = [0; control::WORDS];
        control[control::HALT] = 1;
        control[control::LIMIT] = i32::MAX;
        Self {
            status: Status::Closed,
            opened: 0,
            tokens: Vec::new(),
            pending: None,
            oldest: 0,
            control,
            logits_row: None,
            resident: Vec::new(),
        }
    }

    pub(crate) fn position(&self) -> usize {
        self.tokens.len()
    }

    /// Books a prefill chunk: only the state behind it is certain to be in the ring.
    pub(crate) fn feed_chunk(&mut self, ids: &[u32]) {
        self.tokens.extend_from_slice(ids);
        self.resident = Vec::new();
        self.oldest = self.tokens.len();
        self.pending = None;
        self.logits_row = None;
    }

    /// Books decode steps: each leaves the state before it in the ring, `run_ahead` of them.
    pub(crate) fn advance(&mut self, fed: &[u32], run_ahead: usize) {
        self.tokens.extend_from_slice(fed);
        self.resident = Vec::new();
        self.oldest = self.oldest.max(self.tokens.len().saturating_sub(run_ahead));
        self.control[control::POSITION] = self.tokens.len() as i32;
        self.pending = None;
    }

    pub(crate) fn fail(&mut self) {
        self.status = Status::Failed;
        self.control[control::HALT] = 1;
    }
}

impl Engine {
    /// Takes a free sequence; it starts empty.
    pub fn open(&mut self) -> Result<SequenceId, EngineError> {
        let free = self.sequences.iter().position(|s| s.status == Status::Closed);
        self.open_at(free.ok_or(EngineError::NoSequence(self.sequences.len()))?)
    }

    pub(crate) fn open_at(&mut self, index: usize) -> Result<SequenceId, EngineError> {
        let sequence = SequenceId(index);
        self.ground(sequence);
        self.opened += 1;
        let (opened, status) = (self.opened, Status::Open);
        let resident = std::mem::take(&mut self.sequences[index].resident);
        self.sequences[index] = Sequence { status, opened, resident, ..Sequence::closed() };
        self.write_control(sequence)?;
        Ok(sequence)
    }

    /// Gives a sequence back. Its memory is not cleared: position 0 reads no state.
    pub fn close(&mut self, sequence: SequenceId) {
        if self.awake == Some(sequence) {
            self.park();
        }
        self.ground(sequence);
        if let Some(state) = self.sequences.get_mut(sequence.0) {
            let resident = match state.status {
                Status::Open if !self.cache.is_off() => std::mem::take(&mut state.tokens),
                _ => Vec::new(),
            };
            *state = Sequence { resident, ..Sequence::closed() };
        }
    }

    /// Sequences in use, those that have failed included.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceId> + '_ {
        let in_use = |&index: &usize| self.sequences[index].status != Status::Closed;
        (0..self.sequences.len()).filter(in_use).map(SequenceId)
    }

    /// Books that a plan has written logits of `sequence` to `rows`, the last ones to the last row.
    pub(crate) fn own_logits(&mut self, sequence: SequenceId, rows: Range<usize>) {
        for state in &mut self.sequences {
            if state.logits_row.is_some_and(|row| rows.contains(&row)) {
                state.logits_row = None;
            }
        }
        self.sequences[sequence.0].logits_row = rows.last();
    }

    /// Marks a sequence whose state is undefined, and halts it so that other sequences' steps leave
    /// it alone.
    pub(crate) fn give_up(&mut self, sequence: SequenceId) {
        self.ground(sequence);
        self.sequences[sequence.0].fail();
        // The cause is already on its way to the caller; a device that fails here fails again there.
        let _ = self.write_control(sequence);
    }

    /// Tokens in the states of a sequence.
    pub fn tokens(&self, sequence: SequenceId) -> Result<&[u32], EngineError> {
        Ok(&self.sequence(sequence)?.tokens)
    }

    /// The token that was chosen last and is not yet in the states.
    pub fn pending(&self, sequence: SequenceId) -> Result<Option<u32>, EngineError> {
        Ok(self.sequence(sequence)?.pending)
    }

    /// Takes back the last tokens, so that `position` of them stay. Possible for decode steps, as
    /// far as the state ring reaches; the KV cache needs nothing.
    pub fn step_back(&mut self, sequence: SequenceId, position: usize) -> Result<(), EngineError> {
        self.settle(sequence)?;
        let state = self.sequence(sequence)?;
        let (from, oldest) = (state.position(), state.oldest);
        if position > from || position < oldest {
            return Err(EngineError::StepBack { from, to: position, oldest });
        }
        let state = &mut self.sequences[sequence.0];
        state.tokens.truncate(position);
        state.pending = None;
        state.logits_row = None;
        state.control[control::POSITION] = position as i32;
        self.write_control(sequence)
    }

    pub(crate) fn sequence(&self, sequence: SequenceId) -> Result<&Sequence, EngineError> {
        match self.sequences.get(sequence.0) {
            Some(state) if state.status == Status::Open => Ok(state),
            _ => Err(EngineError::BadSequence(sequence.0)),
        }
    }

    /// Copies the host's control row to the device.
    pub(crate) fn write_control(&mut self, sequence: SequenceId) -> Result<(), EngineError> {
        let row = self.sequences[sequence.0].control;
        let first = sequence.0 * control::WORDS;
        self.control_call(sequence, |engine| {
            write_i32(engine.device.as_mut(), engine.buffers.control, first, &row)
        })
    }

    /// Copies the device's control row to the host.
    pub(crate) fn read_control(&mut self, sequence: SequenceId) -> Result<(), EngineError> {
        let first = sequence.0 * control::WORDS;
        let mut row = [0; control::WORDS];
        self.control_call(sequence, |engine| {
            let words = lily_plan::read_i32(
                engine.device.as_mut(),
                engine.buffers.control,
                first,
                control::WORDS,
            )?;
            row.copy_from_slice(&words);
            Ok(())
        })?;
        self.sequences[sequence.0].control = row;
        Ok(())
    }

    /// Asks for the device's control row as it is after what is submitted now.
    pub(crate) fn fetch_control(&mut self, sequence: SequenceId) -> Result<Fetch, EngineError> {
        let (offset, bytes) = (4 * sequence.0 * control::WORDS, 4 * control::WORDS);
        let result = self.device.fetch(self.buffers.control, offset, bytes);
        if result.is_err() {
            self.give_up(sequence);
        }
        Ok(result?)
    }

    /// Waits for a control row that was asked for, and makes it the host's.
    pub(crate) fn receive_control(
        &mut self,
        sequence: SequenceId,
        fetch: Fetch,
    ) -> Result<(), EngineError> {
        let result = self.device.fetched(fetch);
        if result.is_err() {
            self.give_up(sequence);
        }
        let words = result?;
        let row = &mut self.sequences[sequence.0].control;
        for (word, bytes) in row.iter_mut().zip(words.bytes().as_chunks::<4>().0) {
            *word = i32::from_le_bytes(*bytes);
        }
        Ok(())
    }

    fn control_call(
        &mut self,
        sequence: SequenceId,
        call: impl FnOnce(&mut Self) -> Result<(), DeviceError>,
    ) -> Result<(), EngineError> {
        let result = call(self);
        if result.is_err() {
            self.sequences[sequence.0].fail();
        }
        Ok(result?)
    }
}
