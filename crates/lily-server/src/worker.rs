//! The thread that owns the engine and runs one job after another.

use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use lily_chat::{ChatError, CompletionRequest, Event, Outcome, complete, complete_script};
use lily_model::engine::Engine;
use lily_text::Tokenizer;

use crate::Generator;
use crate::error::ApiError;
use crate::queue::{Job, Queue};
use crate::update::{Relay, Update};

/// What the thread shares with the connections.
pub(crate) struct Worker {
    pub queue: Queue,
    /// Set when the running job must end, whoever still listens.
    abort: AtomicBool,
    busy: AtomicBool,
}

impl Worker {
    /// Starts the thread; it ends when the queue is closed.
    pub fn start(
        generator: Generator,
        tokenizer: Tokenizer,
        queue_limit: usize,
    ) -> io::Result<Arc<Self>> {
        let worker = Arc::new(Self {
            queue: Queue::new(queue_limit),
            abort: AtomicBool::new(false),
            busy: AtomicBool::new(false),
        });
        let shared = Arc::clone(&worker);
        thread::Builder::new()
            .name("lily-engine".into())
            .spawn(move || shared.work(generator, &tokenizer))?;
        Ok(worker)
    }

    /// Ends the running job within one chunk or token.
    pub fn abort(&self) {
        self.abort.store(true, Ordering::Relaxed);
    }

    /// Whether a job is running.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    fn work(&self, mut generator: Generator, tokenizer: &Tokenizer) {
        while let Some(job) = self.queue.pop() {
            self.busy.store(true, Ordering::Relaxed);
            let update = self.run(&mut generator, tokenizer, &job);
            job.updates.send(update);
            self.busy.store(false, Ordering::Relaxed);
        }
    }

    fn run(&self, generator: &mut Generator, tokenizer: &Tokenizer, job: &Job) -> Update {
        let mut relay = Relay {
            updates: &job.updates,
            request: &job.request,
            single_call: job.single_call,
            abort: &self.abort,
            called: false,
        };
        let mut on_event = |event: Event<'_>| relay.event(event);
        // A fault in one request must not take the others down.
        let result = catch_unwind(AssertUnwindSafe(|| match (generator, &job.script) {
            (Generator::Engine(engine), None) => {
                complete_alone(engine, tokenizer, &job.request, &mut on_event)
            }
            (_, script) => {
                let pieces = script.as_deref().unwrap_or_default();
                complete_script(pieces, tokenizer, &job.request, &mut on_event)
            }
        }));
        match result {
            Err(_) => Update::Failed(ApiError::internal("the engine failed on this request")),
            Ok(result) => relay.ended(tokenizer, result),
        }
    }
}

/// Runs a completion in a sequence of its own. The sequence is closed behind it, also after a
/// fault, and a new one reads no state of an old one.
fn complete_alone(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    request: &CompletionRequest,
    on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Outcome, ChatError> {
    let sequence = engine.open()?;
    let result =
        catch_unwind(AssertUnwindSafe(|| complete(engine, sequence, tokenizer, request, on_event)));
    engine.close(sequence);
    result.unwrap_or_else(|fault| resume_unwind(fault))
}
