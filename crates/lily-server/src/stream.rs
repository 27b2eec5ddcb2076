//! A request that runs, on a sequence of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lily_chat::{ChatError, Completion, Outcome, ScriptedCompletion};
use lily_model::engine::{Engine, EngineError, Run, SequenceId};
use lily_text::Tokenizer;

use crate::Generator;
use crate::error::ApiError;
use crate::queue::Job;
use crate::turns::Stage;
use crate::update::{Relay, Update};

/// A request that runs.
pub(crate) struct Stream {
    /// Rises from request to request.
    pub id: u64,
    job: Job,
    work: Work,
    /// The one call that was asked for is there.
    called: bool,
    start: Instant,
}

enum Work {
    Engine { sequence: SequenceId, completion: Box<Completion> },
    Script(Box<ScriptedCompletion>),
}

/// What came of a turn.
pub(crate) enum Turned {
    GoesOn,
    Ended,
    Failed(ChatError),
    /// A fault in the program.
    Panicked,
}

impl Turned {
    /// Whether the engine may be unusable for others too.
    pub fn endangers_engine(&self) -> bool {
        match self {
            Self::Panicked => true,
            Self::Failed(ChatError::Engine(error)) => matches!(error, EngineError::Device(_)),
            _ => false,
        }
    }
}

impl Stream {
    /// Begins a job; gives it back with the reason if that fails.
    pub fn start(
        id: u64,
        generator: &mut Generator,
        tokenizer: &Tokenizer,
        job: Job,
    ) -> Result<Self, Box<(Job, Turned)>> {
        // A fault in one request must not take the others down.
        let work = catch_unwind(AssertUnwindSafe(|| match (&job.script, generator) {
            (None, Generator::Engine(engine)) => begin(engine, tokenizer, &job),
            (script, _) => {
                let pieces = script.clone().unwrap_or_default();
                ScriptedCompletion::start(pieces, tokenizer, &job.request)
                    .map(|completion| Work::Script(Box::new(completion)))
            }
        }));
        match work {
            Ok(Ok(work)) => Ok(Self { id, job, work, called: false, start: Instant::now() }),
            Ok(Err(error)) => Err(Box::new((job, Turned::Failed(error)))),
            Err(_) => Err(Box::new((job, Turned::Panicked))),
        }
    }

    /// What it needs next.
    pub fn stage(&self) -> Stage {
        let is_prompt_read = match &self.work {
            Work::Engine { completion, .. } => completion.run().is_prompt_read(),
            Work::Script(completion) => completion.is_prompt_read(),
        };
        if is_prompt_read { Stage::Decode } else { Stage::Prefill }
    }

    /// Whether its client is gone.
    pub fn is_left(&self) -> bool {
        self.job.updates.is_closed()
    }

    /// Tokens of the prompt that it has read itself.
    pub fn tokens_read(&self) -> usize {
        self.run().map_or(0, |run| run.prefilled() - run.cached())
    }

    fn run(&self) -> Option<&Run> {
        match &self.work {
            Work::Engine { completion, .. } => Some(completion.run()),
            Work::Script(_) => None,
        }
    }

    /// The prompt, as long as nothing of it was read.
    pub fn unread_prompt(&self) -> Option<&[u32]> {
        self.run().filter(|run| run.is_new()).map(Run::prompt)
    }

    /// Whether it may still save a state inside of its prompt.
    pub fn may_save(&self) -> bool {
        self.run().is_some_and(|run| !run.is_prompt_read())
    }

    /// Whether it will save a state behind at least `least` and at most `most` tokens that `prompt`
    /// begins with too.
    pub fn will_save(&self, prompt: &[u32], least: usize, most: usize) -> bool {
        let Some(run) = self.run().filter(|run| !run.is_prompt_read()) else { return false };
        let common = run.prompt().iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let most = common.min(most);
        // What one that has not begun will save is not known yet; it begins soon.
        most >= least && (run.is_new() || run.will_save(least, most))
    }

    /// Most tokens of the next chunk.
    pub fn set_chunk(&mut self, tokens: usize) {
        if let Work::Engine { completion, .. } = &mut self.work {
            completion.set_chunk(tokens);
        }
    }

    /// Moves on by one chunk or token. Ends early if the client is gone or `abort` is set.
    pub fn advance(&mut self, generator: &mut Generator, abort: &AtomicBool) -> Turned {
        let mut relay = Relay {
            updates: &self.job.updates,
            request: &self.job.request,
            single_call: self.job.single_call,
            abort,
            called: self.called,
        };
        let mut on_event = |event: lily_chat::Event<'_>| relay.event(event);
        let result = catch_unwind(AssertUnwindSafe(|| match (&mut self.work, generator) {
            (Work::Engine { completion, .. }, Generator::Engine(engine)) => {
                completion.advance(engine, &mut on_event)
            }
            (Work::Script(completion), _) => completion.advance(&mut on_event),
            // A job is of the same kind as what runs it.
            (Work::Engine { .. }, Generator::Script { .. }) => Ok(false),
        }));
        self.called = relay.called;
        match result {
            Ok(Ok(true)) => Turned::GoesOn,
            Ok(Ok(false)) => Turned::Ended,
            Ok(Err(error)) => Turned::Failed(error),
            Err(_) => Turned::Panicked,
        }
    }

    /// Gives the sequence back: nobody waits for the rest. What was computed is kept for prompts that
    /// go on behind it, also of a request that was left in the middle of its prompt.
    pub fn close(&self, generator: &mut Generator, turned: &Turned) {
        if let (Work::Engine { sequence, .. }, Generator::Engine(engine)) = (&self.work, generator)
        {
            // The sequence may have failed in a way that nobody foresaw.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                if matches!(turned, Turned::GoesOn | Turned::Ended) {
                    // A device that fails here fails again for whoever asks it next.
                    let _ = engine.keep(*sequence);
                }
                engine.close(*sequence);
            }));
        }
    }

    /// Tells the client how it ended. Gives the time that it took.
    pub fn end(self, tokenizer: &Tokenizer, abort: &AtomicBool, turned: Turned) -> Duration {
        let Self { job, work, called, start, .. } = self;
        let relay = Relay {
            updates: &job.updates,
            request: &job.request,
            single_call: job.single_call,
            abort,
            called,
        };
        let outcome: Result<Outcome, ChatError> = match turned {
            Turned::Panicked => {
                job.updates.send(panicked());
                return start.elapsed();
            }
            Turned::Failed(error) => Err(error),
            Turned::GoesOn | Turned::Ended => Ok(match work {
                Work::Engine { completion, .. } => completion.finish(),
                Work::Script(completion) => completion.finish(),
            }),
        };
        job.updates.send(relay.ended(tokenizer, outcome));
        start.elapsed()
    }

    /// The sequence that it runs on.
    pub fn sequence(&self) -> Option<SequenceId> {
        match &self.work {
            Work::Engine { sequence, .. } => Some(*sequence),
            Work::Script(_) => None,
        }
    }
}

/// Tells a client that its request could not begin.
pub(crate) fn refuse(job: &Job, turned: Turned) {
    job.updates.send(match turned {
        Turned::Failed(error) => Update::Failed(ApiError::chat(&error)),
        _ => panicked(),
    });
}

fn panicked() -> Update {
    Update::Failed(ApiError::internal("the engine failed on this request"))
}

/// Opens a sequence for a job. It reads no state of an old one but what was kept behind the very
/// tokens that its prompt begins with.
fn begin(engine: &mut Engine, tokenizer: &Tokenizer, job: &Job) -> Result<Work, ChatError> {
    let sequence = engine.open_for(&job.request.prompt)?;
    match Completion::start(engine, sequence, tokenizer, &job.request) {
        Ok(completion) => Ok(Work::Engine { sequence, completion: Box::new(completion) }),
        Err(error) => {
            engine.close(sequence);
            Err(error)
        }
    }
}
