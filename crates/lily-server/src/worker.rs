//! The thread that owns the engine and runs one job after another.

use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use lily_chat::{ChatError, Event, FinishReason, Outcome, complete};
use lily_model::engine::Engine;
use lily_text::{Thinking, Tokenizer};

use crate::error::ApiError;
use crate::queue::{Finished, Job, Queue, Update};

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
        engine: Engine,
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
            .spawn(move || shared.work(engine, &tokenizer))?;
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

    fn work(&self, mut engine: Engine, tokenizer: &Tokenizer) {
        while let Some(job) = self.queue.pop() {
            self.busy.store(true, Ordering::Relaxed);
            let update = self.run(&mut engine, tokenizer, &job);
            // A client that has left needs no answer.
            let _ = job.updates.send(update);
            self.busy.store(false, Ordering::Relaxed);
        }
    }

    fn run(&self, engine: &mut Engine, tokenizer: &Tokenizer, job: &Job) -> Update {
        let sequence = match engine.open() {
            Ok(sequence) => sequence,
            Err(error) => return Update::Failed(ApiError::chat(&ChatError::Engine(error))),
        };
        let mut on_event = |event: Event<'_>| {
            if let Event::Text { reasoning, content } = event {
                let (reasoning, content) = (reasoning.to_string(), content.to_string());
                // Whether anybody listens is asked below, for every kind of event.
                let _ = job.updates.send(Update::Text { reasoning, content });
            }
            if job.updates.is_closed() || self.abort.load(Ordering::Relaxed) {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        // A fault in one request must not take the others down. The sequence is closed behind it,
        // and a new one reads no state of an old one.
        let result = catch_unwind(AssertUnwindSafe(|| {
            complete(engine, sequence, tokenizer, &job.request, &mut on_event)
        }));
        engine.close(sequence);
        match result {
            Err(_) => Update::Failed(ApiError::internal("the engine failed on this request")),
            Ok(Err(error)) => Update::Failed(ApiError::chat(&error)),
            // The client is gone, or the server is going.
            Ok(Ok(outcome)) if outcome.finish == FinishReason::Cancelled => {
                Update::Failed(ApiError::shutting_down())
            }
            Ok(Ok(outcome)) => Update::Finished(Finished {
                reason: outcome.finish,
                prompt_tokens: job.request.prompt.len(),
                completion_tokens: outcome.tokens.len(),
                reasoning_tokens: reasoning_tokens(tokenizer, job.request.thinking, &outcome),
            }),
        }
    }
}

/// Tokens of the thought, its closing tag included.
fn reasoning_tokens(tokenizer: &Tokenizer, thinking: Thinking, outcome: &Outcome) -> usize {
    if thinking != Thinking::Open {
        return 0;
    }
    let close = tokenizer.id_of("</think>");
    let end = outcome.tokens.iter().position(|&id| Some(id) == close);
    end.map_or(outcome.tokens.len(), |index| index + 1)
}
