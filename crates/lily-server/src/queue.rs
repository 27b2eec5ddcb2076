//! Jobs that wait for the engine, first in, first out.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use lily_chat::{CompletionRequest, FinishReason};
use tokio::sync::mpsc::UnboundedSender;

use crate::error::ApiError;

/// A completion to run.
pub(crate) struct Job {
    pub request: CompletionRequest,
    /// Closed once the client is gone. Not bounded, so that a slow reader cannot hold up the
    /// engine; what can gather in it is bounded by the context.
    pub updates: UnboundedSender<Update>,
}

/// What a client hears of its job. One of the last two ends it.
#[derive(Debug)]
pub(crate) enum Update {
    Text { reasoning: String, content: String },
    Finished(Finished),
    Failed(ApiError),
}

/// How a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    pub reason: FinishReason,
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    /// Of the completion.
    pub reasoning_tokens: usize,
}

/// A bounded queue between the connections and the engine's thread.
pub(crate) struct Queue {
    limit: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    closed: bool,
}

impl Queue {
    pub fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Puts a job at the end. Jobs whose client has left make room.
    pub fn push(&self, job: Job) -> Result<(), ApiError> {
        let mut state = self.lock();
        if state.closed {
            return Err(ApiError::shutting_down());
        }
        if state.waiting.len() >= self.limit {
            state.waiting.retain(|job| !job.updates.is_closed());
        }
        if state.waiting.len() >= self.limit {
            return Err(ApiError::queue_full(self.limit));
        }
        state.waiting.push_back(job);
        self.changed.notify_one();
        Ok(())
    }

    /// Waits for a job whose client is still there; `None` once the queue is closed.
    pub fn pop(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            match state.waiting.pop_front() {
                Some(job) if job.updates.is_closed() => {}
                Some(job) => return Some(job),
                None => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Takes no more jobs, and ends those that wait.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        for job in state.waiting.drain(..) {
            // A client that has left needs no answer.
            let _ = job.updates.send(Update::Failed(ApiError::shutting_down()));
        }
        self.changed.notify_all();
    }

    /// Jobs that wait and have a client.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.iter().filter(|job| !job.updates.is_closed()).count()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here can be left half done by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lily_model::sampling::Sampling;
    use lily_text::Thinking;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    fn job(id: u32) -> (Job, UnboundedReceiver<Update>) {
        let (updates, receiver) = unbounded_channel();
        let request = CompletionRequest {
            prompt: vec![id],
            thinking: Thinking::Absent,
            max_tokens: 1,
            stop_ids: Vec::new(),
            stop: Vec::new(),
            tools: Vec::new(),
            sampling: Sampling::greedy(),
        };
        (Job { request, updates }, receiver)
    }

    #[test]
    fn jobs_come_in_order_without_those_whose_client_left() {
        let queue = Queue::new(3);
        let receivers: Vec<_> = (0..3)
            .map(|id| {
                let (job, receiver) = job(id);
                queue.push(job).unwrap();
                (id, receiver)
            })
            .collect();
        let kept: Vec<_> = receivers.into_iter().filter(|(id, _)| *id != 1).collect();
        assert_eq!(queue.waiting(), 2);
        assert_eq!(queue.pop().unwrap().request.prompt, [0]);
        assert_eq!(queue.pop().unwrap().request.prompt, [2]);
        drop(kept);
    }

    #[test]
    fn a_full_queue_refuses_until_a_client_leaves() {
        let queue = Queue::new(1);
        let (first, first_receiver) = job(0);
        queue.push(first).unwrap();
        let (second, _second_receiver) = job(1);
        assert_eq!(queue.push(second).unwrap_err(), ApiError::queue_full(1));
        drop(first_receiver);
        let (third, _third_receiver) = job(2);
        queue.push(third).unwrap();
        assert_eq!(queue.pop().unwrap().request.prompt, [2]);
    }

    #[test]
    fn closing_ends_waiting_jobs_and_the_worker() {
        let queue = Queue::new(2);
        let (first, mut receiver) = job(0);
        queue.push(first).unwrap();
        queue.close();
        assert!(queue.pop().is_none());
        assert!(matches!(receiver.try_recv(), Ok(Update::Failed(_))));
        let (late, _receiver) = job(1);
        assert_eq!(queue.push(late).unwrap_err(), ApiError::shutting_down());
    }
}
