//! Prompts that go on where an earlier sequence has been.

use lily_kernels::CHUNK;
use lily_plan::control;

use super::cache::{CacheUse, Found, NEAR, SavePoints, common, needed_bytes};
use super::sequence::Status;
use super::snapshot::write_piece;
use super::{Engine, EngineError, Run, SequenceId};

/// Rows that are still in the memory of a sequence, from which on it is taken in front of one that
/// comes before it: copying fewer costs less than a step past a sequence that sleeps.
const WORTH_A_PLACE: usize = 2048;

impl Engine {
    /// What is kept of earlier sequences, and what became of it.
    pub fn cache_use(&self) -> CacheUse {
        self.cache.figures()
    }

    /// Bytes of a cache that keeps the beginning of one prompt, of so many tokens.
    pub fn bytes_to_keep(&self, tokens: usize) -> u64 {
        // All sequences have the same pieces.
        let any = SequenceId(0);
        let state_bytes = self.piece_bytes(&self.state_pieces(any, CHUNK));
        needed_bytes(tokens, state_bytes, self.piece_bytes(&self.row_pieces(any, 0..1)))
    }

    /// Tokens of the longest beginning of a prompt that the cache can ever keep.
    pub fn longest_kept(&self) -> usize {
        let (none, one) = (self.bytes_to_keep(0), self.bytes_to_keep(1));
        let left = self.cache.figures().capacity.saturating_sub(none);
        usize::try_from(left / (one - none)).unwrap_or(usize::MAX)
    }

    /// Tokens of a prompt that need not be read: those in front of the last saved state that it
    /// begins with. At least one token is always read.
    pub fn reusable(&self, prompt: &[u32]) -> usize {
        self.cache.find(prompt).tokens
    }

    /// As [`open`](Self::open), for a prompt: takes the sequence whose memory holds most of what the
    /// prompt can go on with.
    ///
    /// # Errors
    /// Every sequence is taken.
    pub fn open_for(&mut self, prompt: &[u32]) -> Result<SequenceId, EngineError> {
        let prompt = &prompt[..self.reusable(prompt)];
        let free = self.sequences.iter().enumerate().filter(|(_, s)| s.status == Status::Closed);
        let held = free.map(|(index, state)| {
            let same = common(&state.resident, prompt);
            (if same < WORTH_A_PLACE { 0 } else { same }, index)
        });
        // The first of those that hold most.
        match held.min_by_key(|&(same, index)| (usize::MAX - same, index)) {
            Some((_, index)) => self.open_at(index),
            None => Err(EngineError::NoSequence(self.sequences.len())),
        }
    }

    /// Keeps what is in a sequence for prompts that begin with its tokens; `false` if nothing was
    /// kept: the cache is off or too small, the state is there or near one that is, or not finite.
    ///
    /// # Errors
    /// The device fails, or the sequence is not open.
    pub fn keep(&mut self, sequence: SequenceId) -> Result<bool, EngineError> {
        if self.cache.is_off() {
            return Ok(false);
        }
        self.settle(sequence)?;
        let tokens = &self.sequence(sequence)?.tokens;
        if tokens.len() < self.cache.saved(tokens) + NEAR {
            return Ok(false);
        }
        self.save(sequence)
    }

    /// Saves the state of a sequence that is at rest.
    fn save(&mut self, sequence: SequenceId) -> Result<bool, EngineError> {
        let tokens = self.sequence(sequence)?.tokens.clone();
        let pieces = self.state_pieces(sequence, tokens.len());
        let state_bytes = self.piece_bytes(&pieces);
        let row_bytes = self.piece_bytes(&self.row_pieces(sequence, 0..1));
        let Some(from) = self.cache.make_room(&tokens, state_bytes, row_bytes) else {
            return Ok(false);
        };
        let rows = self.row_pieces(sequence, from..tokens.len());
        let read = self.read_pieces(sequence, pieces);
        match read.and_then(|state| Ok((state, self.read_pieces(sequence, rows)?))) {
            Ok((state, rows)) => {
                self.cache.insert(&tokens, from, rows, state);
                Ok(true)
            }
            Err(error) => {
                self.cache.give_up_room(&tokens);
                match error {
                    // Whoever reads its logits hears of it.
                    EngineError::PoisonedState { .. } => Ok(false),
                    error => Err(error),
                }
            }
        }
    }

    /// Looks a run's prompt up, once, and lets the run go on there.
    pub(super) fn resume(&mut self, run: &mut Run) -> Result<(), EngineError> {
        if self.cache.is_off() || run.points.is_some() {
            return Ok(());
        }
        let base = run.position - run.fed;
        if base > 0 {
            // The sequence has gone on already.
            let tokens = base + run.prompt.len();
            let borders: Vec<usize> =
                run.generation.borders.iter().map(|border| border + base).collect();
            run.points = Some(SavePoints::new(tokens, &borders, base, 0));
            return Ok(());
        }
        let found = self.cache.find(&run.prompt);
        self.cache.note_use(&found);
        let points =
            SavePoints::new(run.prompt.len(), &run.generation.borders, found.tokens, found.parted);
        run.points = Some(points);
        if found.tokens == 0 {
            return Ok(());
        }
        if let Err(error) = self.take(run.sequence, &run.prompt, &found) {
            self.give_up(run.sequence);
            return Err(error);
        }
        run.fed = found.tokens;
        run.cached = found.tokens;
        run.position = found.tokens;
        Ok(())
    }

    /// Puts a saved state into an empty sequence. Rows that are there from an earlier use stay.
    fn take(
        &mut self,
        sequence: SequenceId,
        prompt: &[u32],
        found: &Found,
    ) -> Result<(), EngineError> {
        let resident = std::mem::take(&mut self.sequences[sequence.0].resident);
        let there = common(&resident, &prompt[..found.tokens]);
        for run in self.cache.rows(found).filter(|run| run.end > there) {
            let skipped = there.saturating_sub(run.start);
            let pieces = self.row_pieces(sequence, run.start + skipped..run.end);
            for (piece, bytes) in pieces.iter().zip(run.rows) {
                let from = bytes.len() / (run.end - run.start) * skipped;
                write_piece(self.device.as_mut(), &self.buffers.table, piece, &bytes[from..])?;
            }
        }
        let pieces = self.state_pieces(sequence, found.tokens);
        for (piece, bytes) in pieces.iter().zip(self.cache.state(found).into_iter().flatten()) {
            write_piece(self.device.as_mut(), &self.buffers.table, piece, bytes)?;
        }
        let state = &mut self.sequences[sequence.0];
        state.tokens = prompt[..found.tokens].to_vec();
        state.oldest = found.tokens;
        state.control[control::POSITION] = found.tokens as i32;
        self.write_control(sequence)
    }

    /// Saves what a run has read, where it is a good place for others to go on.
    pub(super) fn save_on_the_way(&mut self, run: &mut Run) -> Result<(), EngineError> {
        let end = run.position - run.fed + run.prompt.len();
        let Some(points) = &mut run.points else { return Ok(()) };
        if points.reach(run.position, end) {
            self.save(run.sequence)?;
        }
        Ok(())
    }
}
