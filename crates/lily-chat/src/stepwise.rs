//! A completion step by step, so that several can go on side by side.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use lily_model::engine::{Engine, Finish, Generation, Progress, Run, SequenceId};
use lily_text::Tokenizer;

use crate::ChatError;
use crate::completion::{CompletionRequest, Event, FinishReason, OnEvent, Outcome, Timings};
use crate::thought::Thought;
use crate::writer::Writer;

/// The token that begins a turn in the family's templates.
const TURN_START: &str = "<|im_start|>";

/// A reply under way, whoever makes its tokens.
pub(crate) struct Reply {
    pub(crate) writer: Writer,
    /// Ids so far, a stop token included.
    pub(crate) tokens: Vec<u32>,
    prompt_tokens: usize,
    start: Instant,
    first_token: Option<Duration>,
    finish: Option<FinishReason>,
}

impl Reply {
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        request: &CompletionRequest,
    ) -> Result<Self, ChatError> {
        Ok(Self {
            writer: Writer::new(tokenizer, request)?,
            tokens: Vec::new(),
            prompt_tokens: request.prompt.len(),
            start: Instant::now(),
            first_token: None,
            finish: None,
        })
    }

    /// Notes when the first token came.
    pub(crate) fn note_first(&mut self) {
        self.first_token.get_or_insert_with(|| self.start.elapsed());
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.finish.is_some()
    }

    /// Ends the text, for the reason that the model's side gives.
    pub(crate) fn end(&mut self, reason: FinishReason, on_event: &mut OnEvent<'_>) {
        self.finish = Some(self.writer.finish(reason, on_event));
    }

    /// What came of it; so many tokens of the prompt were not read.
    pub(crate) fn outcome(self, cached_tokens: usize) -> Outcome {
        let timings = Timings {
            first_token: self.first_token.unwrap_or(Duration::ZERO),
            total: self.start.elapsed(),
            prompt_tokens: self.prompt_tokens.saturating_sub(cached_tokens),
            completion_tokens: self.tokens.len(),
        };
        let finish = self.finish.unwrap_or(FinishReason::Cancelled);
        Outcome { cached_tokens, ..self.writer.outcome(self.tokens, finish, timings) }
    }
}

/// A completion of an engine under way.
pub struct Completion {
    run: Run,
    reply: Reply,
}

impl Completion {
    /// Begins a completion on an open sequence; nothing is computed yet.
    ///
    /// # Errors
    /// The engine refuses the prompt, or a stop string is empty.
    pub fn start(
        engine: &mut Engine,
        sequence: SequenceId,
        tokenizer: &Tokenizer,
        request: &CompletionRequest,
    ) -> Result<Self, ChatError> {
        let reply = Reply::new(tokenizer, request)?;
        let generation = Generation {
            limit: request.max_tokens,
            stop_ids: request.stop_ids.clone(),
            sampling: request.sampling.clone(),
            logprobs: request.logprobs,
            constraint: Thought::bind(
                request.thinking_budget,
                request.thinking,
                tokenizer,
                request.format.as_ref(),
            ),
            borders: borders(tokenizer, &request.prompt),
        };
        Ok(Self { run: engine.start(sequence, &request.prompt, generation)?, reply })
    }

    /// Moves on by one prefill chunk or one token, and tells `on_event` what came of it; it may stop
    /// the work. Gives `false` once the completion has ended, behind its last text.
    ///
    /// # Errors
    /// The engine fails; that ends the completion.
    pub fn advance(
        &mut self,
        engine: &mut Engine,
        on_event: &mut OnEvent<'_>,
    ) -> Result<bool, ChatError> {
        if self.reply.has_ended() {
            return Ok(false);
        }
        let flow = match engine.advance(&mut self.run)? {
            None => ControlFlow::Continue(()),
            Some(Progress::Prefilled(n)) => match on_event(Event::Prefilled(n)) {
                // The first token costs nothing once the whole prompt is read.
                ControlFlow::Break(()) if self.run.is_prompt_read() => ControlFlow::Continue(()),
                flow => flow,
            },
            Some(Progress::Token(chosen)) => {
                self.reply.note_first();
                self.reply.tokens.push(chosen.id);
                let is_text = !self.has_stopped() && !self.reply.writer.ends_turn(chosen.id);
                let asked = match is_text {
                    true => on_event(Event::Token(&chosen)),
                    false => ControlFlow::Continue(()),
                };
                let written = self.write(chosen.id, on_event);
                if asked.is_break() { asked } else { written }
            }
        };
        if flow.is_break() || self.run.finish().is_some() {
            self.cancel(engine, on_event)?;
        }
        Ok(!self.reply.has_ended())
    }

    /// Whether the last token is one of those that end the text.
    fn has_stopped(&self) -> bool {
        matches!(self.run.finish(), Some(Finish::Stop(_)))
    }

    fn write(&mut self, id: u32, on_event: &mut OnEvent<'_>) -> ControlFlow<()> {
        if self.has_stopped() {
            return ControlFlow::Continue(());
        }
        let count = self.reply.tokens.len();
        match self.reply.writer.push(id, on_event) {
            ControlFlow::Continue(()) => on_event(Event::Generated(count)),
            ControlFlow::Break(()) => ControlFlow::Break(()),
        }
    }

    /// Ends the completion where it is, and gives out the text that was held back. Does nothing to
    /// one that has ended.
    ///
    /// # Errors
    /// The engine fails.
    pub fn cancel(
        &mut self,
        engine: &mut Engine,
        on_event: &mut OnEvent<'_>,
    ) -> Result<(), ChatError> {
        if self.reply.has_ended() {
            return Ok(());
        }
        engine.cancel(&mut self.run)?;
        let reason = self.run.finish().map_or(FinishReason::Cancelled, FinishReason::from);
        self.reply.end(reason, on_event);
        Ok(())
    }

    /// Most tokens of the prompt's next chunks, as [`Run::set_chunk`].
    pub fn set_chunk(&mut self, tokens: usize) {
        self.run.set_chunk(tokens);
    }

    /// What runs in the engine.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// What came of it; cancelled if it was not at its end.
    pub fn finish(self) -> Outcome {
        self.reply.outcome(self.run.cached())
    }
}

/// Where turns begin in a prompt.
fn borders(tokenizer: &Tokenizer, prompt: &[u32]) -> Vec<usize> {
    let Some(start) = tokenizer.id_of(TURN_START) else { return Vec::new() };
    prompt.iter().enumerate().filter_map(|(at, &id)| (id == start).then_some(at)).collect()
}

impl From<Finish> for FinishReason {
    fn from(finish: Finish) -> Self {
        match finish {
            Finish::Stop(_) => Self::Stop,
            Finish::Length => Self::Length,
            Finish::Cancelled => Self::Cancelled,
        }
    }
}

/// Runs a completion on an open sequence from its start to its end.
///
/// # Errors
/// The engine refuses the prompt or fails, or a stop string is empty.
pub fn complete(
    engine: &mut Engine,
    sequence: SequenceId,
    tokenizer: &Tokenizer,
    request: &CompletionRequest,
    on_event: &mut OnEvent<'_>,
) -> Result<Outcome, ChatError> {
    let mut completion = Completion::start(engine, sequence, tokenizer, request)?;
    while completion.advance(engine, on_event)? {}
    Ok(completion.finish())
}
