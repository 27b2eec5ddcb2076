//! A generation step by step, so that several can go on side by side.

use lily_kernels::CHUNK;
use lily_kernels::draw::Draw;
use lily_plan::{control, write_i32};

use super::cache::SavePoints;
use super::sequence::ControlRow;
use super::{
    Allowed, Chosen, Engine, EngineError, Finish, Generation, Progress, SequenceId, TokenLogprobs,
    TokenMask,
};
use crate::plan::{Choice, PrefillEnd};
use crate::sampling::TokenCounts;

/// A generation under way: made by [`Engine::start`], moved on by [`Engine::advance`].
///
/// It may be dropped at any time; the sequence then stays where it is until it is used otherwise.
#[derive(Debug)]
pub struct Run {
    pub(super) sequence: SequenceId,
    /// Of the sequence, when the run began: a sequence that was closed and opened is another one.
    opened: u64,
    pub(super) prompt: Vec<u32>,
    /// Tokens of the prompt that are in the states.
    pub(super) fed: usize,
    /// Of them, those that came from an earlier sequence.
    pub(super) cached: usize,
    /// Where states are saved; `None` until the prompt was looked up, and without a cache.
    pub(super) points: Option<SavePoints>,
    /// Most tokens of the next chunk.
    chunk: usize,
    pub(super) generation: Generation,
    path: Path,
    /// Tokens handed out.
    produced: usize,
    /// Tokens in the states, as far as this run has moved them.
    pub(super) position: usize,
    finish: Option<Finish>,
}

/// Who chooses tokens.
#[derive(Debug)]
enum Path {
    /// Nobody: only the prompt is read.
    Nobody,
    /// The device, which may run ahead of what was handed out; by its row of the `sampling` buffer if
    /// that is asked for, else the largest logit.
    Device(Choice),
    /// The host, one step at a time.
    Host(HostChoice),
}

#[derive(Debug)]
struct HostChoice {
    counts: TokenCounts,
    /// Logits of the next token. A copy: sequences share the device's memory of them.
    logits: Option<Vec<f32>>,
    /// What the constraint allows next, if it was asked.
    allowed: Option<Allowed>,
    mask: TokenMask,
}

impl Path {
    fn prefill_end(&self) -> PrefillEnd {
        match self {
            Self::Nobody => PrefillEnd::More,
            Self::Device(Choice::Draw) => PrefillEnd::Draw,
            Self::Device(_) => PrefillEnd::Sample,
            Self::Host(_) => PrefillEnd::Logits,
        }
    }
}

impl Run {
    /// The sequence that this run moves on.
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt.len()
    }

    /// Tokens of the prompt that are in the states: read, or kept from an earlier sequence.
    pub fn prefilled(&self) -> usize {
        self.fed
    }

    /// Tokens of the prompt that were kept from an earlier sequence. Known once the first chunk is
    /// read.
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// Whether the first chunk was not asked for yet.
    pub fn is_new(&self) -> bool {
        self.fed == 0
    }

    /// Whether this run is known to save a state, behind at least `least` and at most `most` tokens.
    pub fn will_save(&self, least: usize, most: usize) -> bool {
        let points = self.points.as_ref();
        points.is_some_and(|points| points.ahead().any(|at| (least..=most).contains(&at)))
    }

    /// The prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// Whether the prompt is read; every further step gives a token.
    pub fn is_prompt_read(&self) -> bool {
        self.fed == self.prompt.len()
    }

    /// Tokens handed out.
    pub fn produced(&self) -> usize {
        self.produced
    }

    /// Why it ended; `None` while it goes on.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Most tokens of the prompt's next chunks, from 1 to the engine's own largest chunk. Smaller
    /// ones let other runs go on sooner.
    pub fn set_chunk(&mut self, tokens: usize) {
        self.chunk = tokens.max(1);
    }
}

impl Engine {
    /// Begins a generation behind what is in the sequence; nothing is computed yet.
    ///
    /// In an empty sequence of an engine with a cache, the first step looks for a state that was saved
    /// behind a beginning of the prompt, and the run goes on there.
    ///
    /// Runs on different sequences may be advanced in any order, and each gives what it would give
    /// alone. While a run goes on, its sequence may be saved but not changed.
    ///
    /// # Errors
    /// The sequence is not open, or prompt or sampling are not valid.
    pub fn start(
        &mut self,
        sequence: SequenceId,
        prompt: &[u32],
        generation: Generation,
    ) -> Result<Run, EngineError> {
        generation.sampling.validate()?;
        self.check_input(sequence, prompt)?;
        self.settle(sequence)?;
        let on_device = generation.stop_ids.len() <= control::STOP_IDS
            && generation.logprobs.is_none()
            && generation.constraint.is_none();
        let rule = generation.sampling.on_device().filter(|_| on_device);
        let path = if generation.limit == 0 {
            Path::Nobody
        } else if let Some(rule) = rule {
            self.set_stops(sequence, &generation)?;
            if generation.sampling.is_plain_greedy() {
                Path::Device(Choice::Device)
            } else {
                self.set_rule(sequence, &rule)?;
                Path::Device(Choice::Draw)
            }
        } else {
            let mut counts = TokenCounts::default();
            let before = &self.sequence(sequence)?.tokens;
            before.iter().chain(prompt).for_each(|&token| counts.add_prompt(token));
            let mask = match generation.constraint {
                Some(_) => TokenMask::none(self.shape.vocab),
                None => TokenMask::none(0),
            };
            Path::Host(HostChoice { counts, logits: None, allowed: None, mask })
        };
        let state = self.sequence(sequence)?;
        Ok(Run {
            sequence,
            opened: state.opened,
            prompt: prompt.to_vec(),
            fed: 0,
            cached: 0,
            points: None,
            chunk: self.session.tokens,
            generation,
            path,
            produced: 0,
            position: state.position(),
            finish: None,
        })
    }

    /// Moves a run on by one prefill chunk or one token; `None` once it has ended.
    ///
    /// The states of a run that has ended hold the prompt and all chosen tokens but the last, which
    /// is pending: exactly as if the sequence had run to that point and no further.
    ///
    /// # Errors
    /// The device fails, no token can be chosen, or the sequence was changed meanwhile. An error ends
    /// the run.
    pub fn advance(&mut self, run: &mut Run) -> Result<Option<Progress>, EngineError> {
        if run.finish.is_some() {
            return Ok(None);
        }
        let result = self.check_run(run).and_then(|()| {
            if run.is_prompt_read() { self.next_token(run) } else { self.next_chunk(run) }
        });
        if let Err(error) = &result {
            run.finish = Some(Finish::Cancelled);
            if matches!(error, EngineError::NotFinite { .. }) {
                // The next one with this beginning is read from its first token.
                self.cache.forget(&run.prompt);
            }
        }
        result.map(Some)
    }

    /// Ends a run where it is: behind the last token that was handed out, or the last chunk. Does
    /// nothing to one that has ended.
    ///
    /// # Errors
    /// The device fails, or the sequence was changed meanwhile.
    pub fn cancel(&mut self, run: &mut Run) -> Result<(), EngineError> {
        if run.finish.is_some() {
            return Ok(());
        }
        run.finish = Some(Finish::Cancelled);
        self.check_run(run)?;
        self.settle(run.sequence)
    }

    fn check_run(&mut self, run: &Run) -> Result<(), EngineError> {
        let flight = self.flights.get_mut(run.sequence.0);
        if let Some(error) = flight.and_then(|flight| flight.error.take()) {
            return Err(error);
        }
        let state = self.sequence(run.sequence)?;
        if state.opened != run.opened || state.position() != run.position {
            return Err(EngineError::StaleRun(run.sequence.0));
        }
        Ok(())
    }

    fn next_chunk(&mut self, run: &mut Run) -> Result<Progress, EngineError> {
        self.resume(run)?;
        let until = run.points.as_ref().and_then(SavePoints::next);
        let until = until.map_or(usize::MAX, |at| at - run.position);
        let most = run.chunk.min(until).min(run.prompt.len() - run.fed);
        let mut count = self.next_chunk_of(most, run.position)?;
        if run.points.is_some() && count >= CHUNK && count < run.prompt.len() - run.fed {
            // States are kept at the ends of blocks.
            count -= (run.position + count) % CHUNK;
        }
        let part = &run.prompt[run.fed..run.fed + count];
        let is_last = run.fed + count == run.prompt.len();
        let end = if is_last { run.path.prefill_end() } else { PrefillEnd::More };
        self.feed(run.sequence, part, end)?;
        run.fed += count;
        run.position += count;
        if is_last {
            match &mut run.path {
                Path::Nobody => run.finish = Some(Finish::Length),
                Path::Device(_) => {}
                Path::Host(choice) => choice.logits = Some(self.logits(run.sequence)?),
            }
        }
        self.save_on_the_way(run)?;
        Ok(Progress::Prefilled(run.fed))
    }

    fn next_token(&mut self, run: &mut Run) -> Result<Progress, EngineError> {
        let chosen = match run.path {
            Path::Host(_) => self.choose_on_host(run)?,
            Path::Device(choice) => self.chosen_on_device(run, choice)?,
            Path::Nobody => return Err(EngineError::StaleRun(run.sequence.0)),
        };
        run.produced += 1;
        let sequence = run.sequence;
        self.sequences[sequence.0].pending = Some(chosen.id);
        self.flights[sequence.0].produced = run.produced;
        run.finish = if run.generation.stop_ids.contains(&chosen.id) {
            Some(Finish::Stop(chosen.id))
        } else if run.produced >= run.generation.limit || run.position >= self.session.capacity {
            Some(Finish::Length)
        } else {
            None
        };
        if run.finish.is_some() {
            self.settle(sequence)?;
        }
        Ok(Progress::Token(chosen))
    }

    /// The device chooses, stops by itself, and may run ahead of what the host has read.
    fn chosen_on_device(&mut self, run: &mut Run, choice: Choice) -> Result<Chosen, EngineError> {
        let sequence = run.sequence;
        let row = match self.sequence(sequence)?.pending {
            Some(fed) if run.produced > 0 => {
                let row = self.next_row(sequence, run.position, choice)?;
                self.sequences[sequence.0].tokens.push(fed);
                run.position += 1;
                row
            }
            // Chosen at the end of the prompt.
            _ => self.sequences[sequence.0].control,
        };
        match u32::try_from(row[control::TOKEN]) {
            Ok(id) if row[control::PRODUCED] as usize > run.produced => {
                Ok(Chosen { id, logprobs: None })
            }
            // The device halts before the host does only where it met a NaN.
            _ => {
                self.give_up(sequence);
                Err(EngineError::NotFinite { position: run.position })
            }
        }
    }

    /// The control row behind the next step of a sequence whose states hold `position` tokens as far
    /// as the host has read.
    fn next_row(
        &mut self,
        sequence: SequenceId,
        position: usize,
        choice: Choice,
    ) -> Result<ControlRow, EngineError> {
        if let Some(row) = self.flights[sequence.0].ready.pop_front() {
            return Ok(row);
        }
        self.wake(sequence, position)?;
        while self.flights[sequence.0].submitted <= position + self.options.steps_ahead {
            self.submit_step(sequence, choice)?;
        }
        let fetch = self.flights[sequence.0].fetches.pop_front();
        // The loop has submitted one at least.
        let fetch = fetch.ok_or(EngineError::StaleRun(sequence.0))?;
        self.receive_control(sequence, fetch)?;
        Ok(self.sequences[sequence.0].control)
    }

    /// One step, and a token of its logits.
    fn choose_on_host(&mut self, run: &mut Run) -> Result<Chosen, EngineError> {
        let (sequence, vocab_used) = (run.sequence, self.shape.vocab_used);
        let pending = self.sequence(sequence)?.pending;
        let (generation, Path::Host(choice)) = (&mut run.generation, &mut run.path) else {
            return Err(EngineError::StaleRun(sequence.0));
        };
        let mut ask = |choice: &mut HostChoice| -> Result<(), EngineError> {
            if let Some(constraint) = &mut generation.constraint
                && choice.allowed.is_none()
            {
                choice.mask.clear();
                choice.allowed = Some(constraint.mask(&mut choice.mask)?);
            }
            Ok(())
        };
        let logits = match (choice.logits.take(), pending) {
            (Some(logits), _) => {
                ask(choice)?;
                logits
            }
            (None, Some(token)) => {
                let mut asked = Ok(());
                // The mask is computed while the device is busy.
                self.step_beside(sequence, token, &mut || asked = ask(choice))?;
                run.position += 1;
                asked?;
                self.logits(sequence)?
            }
            (None, None) => return Err(EngineError::StaleRun(sequence.0)),
        };
        let mask = (choice.allowed.take() == Some(Allowed::Masked)).then_some(&choice.mask);
        let sampling = &generation.sampling;
        let id = sampling.choose(&logits, vocab_used, &choice.counts, run.position, mask);
        if id.is_err() {
            self.give_up(sequence);
        }
        let id = id?;
        choice.counts.add_produced(id);
        if let Some(constraint) = &mut generation.constraint {
            constraint.accept(id)?;
        }
        let logits = &logits[..vocab_used.min(logits.len())];
        let logprobs = generation.logprobs.map(|top| TokenLogprobs::new(logits, id, top));
        Ok(Chosen { id, logprobs })
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

    /// Writes how tokens are drawn.
    fn set_rule(&mut self, sequence: SequenceId, rule: &Draw) -> Result<(), EngineError> {
        let first = sequence.0 * Draw::WORDS;
        Ok(write_i32(self.device.as_mut(), self.buffers.sampling, first, &rule.words())?)
    }
}
