//! Jobs that wait for the engine, first in, first out.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lily_chat::CompletionRequest;

use crate::error::ApiError;
use crate::update::{Listener, Update};

/// A completion to run: one choice of a reply.
pub(crate) struct Job {
    pub request: CompletionRequest,
    /// Whether the reply ends with its first call of a tool.
    pub single_call: bool,
    /// What is said instead of running the model.
    pub script: Option<Arc<[String]>>,
    /// Closed once the client is gone.
    pub updates: Listener,
}

/// A bounded queue between the connections and the engine's thread.
pub(crate) struct Queue {
    limit: usize,
    /// Jobs that run at once.
    sessions: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    /// Jobs that run, those included that were just taken.
    running: usize,
    closed: bool,
    /// Seconds that a job runs, on average of the last ones.
    service: Option<f64>,
}

/// Longest time that a client is told to wait before it asks again, in seconds.
const LONGEST_RETRY: f64 = 60.0;

impl Queue {
    pub fn new(limit: usize, sessions: usize) -> Self {
        Self { limit, sessions, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Puts the jobs of a reply at the end, if there is room for all of them: places to wait in, and
    /// sequences that are free. Jobs whose client has left make room.
    pub fn push(&self, jobs: Vec<Job>) -> Result<(), ApiError> {
        let most = self.limit.saturating_add(self.sessions);
        if jobs.len() > most {
            return Err(ApiError::too_many_choices(jobs.len(), most));
        }
        let mut state = self.lock();
        if state.closed {
            return Err(ApiError::shutting_down());
        }
        let room = most - jobs.len();
        if state.waiting.len() + state.running > room {
            state.waiting.retain(|job| !job.updates.is_closed());
        }
        if state.waiting.len() + state.running > room {
            return Err(ApiError::queue_full(self.limit, state.retry_after(self.sessions)));
        }
        state.waiting.extend(jobs);
        self.changed.notify_all();
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
                Some(job) => {
                    state.running += 1;
                    return Some(job);
                }
                None => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// A job whose client is still there, if one waits and the queue is open.
    pub fn try_pop(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            let job = state.waiting.pop_front()?;
            if !job.updates.is_closed() {
                state.running += 1;
                return Some(job);
            }
        }
    }

    /// Notes how many of the jobs that were taken run.
    pub fn set_running(&self, jobs: usize) {
        self.lock().running = jobs;
    }

    /// Notes how long a job has run.
    pub fn note_served(&self, time: Duration) {
        let mut state = self.lock();
        let (new, old) = (time.as_secs_f64(), state.service);
        state.service = Some(old.map_or(new, |old| old + (new - old) / 4.0));
    }

    /// Takes no more jobs, and ends those that wait.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        for job in state.waiting.drain(..) {
            job.updates.send(Update::Failed(ApiError::shutting_down()));
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

impl State {
    /// Seconds until a place in the queue is likely to be free: one of the running jobs must end.
    fn retry_after(&self, sessions: usize) -> u32 {
        let seconds = self.service.unwrap_or(0.0) / sessions.max(1) as f64;
        seconds.ceil().clamp(1.0, LONGEST_RETRY) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lily_model::sampling::Sampling;
    use lily_text::Thinking;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    fn job(id: u32) -> (Vec<Job>, UnboundedReceiver<(usize, Update)>) {
        let (updates, receiver) = unbounded_channel();
        let request = CompletionRequest {
            prompt: vec![id],
            thinking: Thinking::Absent,
            thinking_budget: None,
            max_tokens: 1,
            stop_ids: Vec::new(),
            stop: Vec::new(),
            tools: Vec::new(),
            sampling: Sampling::greedy(),
            logprobs: None,
            constraint: None,
        };
        let updates = Listener::new(updates, 0);
        (vec![Job { request, single_call: false, script: None, updates }], receiver)
    }

    #[test]
    fn jobs_come_in_order_without_those_whose_client_left() {
        let queue = Queue::new(3, 1);
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
        assert_eq!(queue.try_pop().unwrap().request.prompt, [2]);
        assert!(queue.try_pop().is_none());
        drop(kept);
    }

    #[test]
    fn a_full_queue_refuses_until_a_client_leaves() {
        let queue = Queue::new(1, 1);
        queue.set_running(1);
        let (first, first_receiver) = job(0);
        queue.push(first).unwrap();
        let (second, _second_receiver) = job(1);
        assert_eq!(queue.push(second).unwrap_err(), ApiError::queue_full(1, 1));
        drop(first_receiver);
        let (third, _third_receiver) = job(2);
        queue.push(third).unwrap();
        assert_eq!(queue.pop().unwrap().request.prompt, [2]);
    }

    #[test]
    fn a_queue_of_no_places_takes_what_can_run_at_once() {
        let queue = Queue::new(0, 2);
        let mut receivers = Vec::new();
        for id in 0..2 {
            let (job, receiver) = job(id);
            queue.push(job).unwrap();
            receivers.push(receiver);
        }
        let refused = ApiError::queue_full(0, 1);
        assert_eq!(queue.push(job(2).0).unwrap_err(), refused, "neither is taken yet");
        assert!(queue.pop().is_some() && queue.try_pop().is_some());
        assert_eq!(queue.push(job(3).0).unwrap_err(), refused, "both run");
        queue.set_running(1);
        let (late, _receiver) = job(4);
        queue.push(late).unwrap();
    }

    #[test]
    fn the_jobs_of_a_reply_have_room_together_or_not_at_all() {
        let queue = Queue::new(2, 1);
        let mut receivers = Vec::new();
        let mut jobs = |number| -> Vec<Job> {
            let (jobs, of_these): (Vec<_>, Vec<_>) = (0..number).map(job).unzip();
            receivers.extend(of_these);
            jobs.into_iter().flatten().collect()
        };
        assert_eq!(queue.push(jobs(4)).unwrap_err(), ApiError::too_many_choices(4, 3));
        queue.push(jobs(1)).unwrap();
        assert_eq!(queue.push(jobs(3)).unwrap_err(), ApiError::queue_full(2, 1));
        assert_eq!(queue.waiting(), 1);
        queue.push(jobs(2)).unwrap();
        assert_eq!(queue.waiting(), 3);
    }

    #[test]
    fn a_client_is_told_to_come_back_when_a_place_is_likely_to_be_free() {
        let queue = Queue::new(0, 4);
        queue.set_running(4);
        let retry = |seconds: &[u64]| {
            seconds.iter().for_each(|&s| queue.note_served(Duration::from_secs(s)));
            let (late, _receiver) = job(0);
            queue.push(late).unwrap_err()
        };
        assert_eq!(retry(&[]), ApiError::queue_full(0, 1), "nothing is known yet");
        assert_eq!(retry(&[20]), ApiError::queue_full(0, 5), "four run at once");
        // 20 + (40 - 20) / 4 = 25, a quarter of it is 6.25.
        assert_eq!(retry(&[40]), ApiError::queue_full(0, 7));
        assert_eq!(retry(&[1_000_000]), ApiError::queue_full(0, 60));
        assert_eq!(retry(&[0; 100]), ApiError::queue_full(0, 1));
    }

    #[test]
    fn closing_ends_waiting_jobs_and_the_worker() {
        let queue = Queue::new(2, 1);
        let (first, mut receiver) = job(0);
        queue.push(first).unwrap();
        queue.close();
        assert!(queue.pop().is_none());
        assert!(matches!(receiver.try_recv(), Ok((0, Update::Failed(_)))));
        let (late, _receiver) = job(1);
        assert_eq!(queue.push(late).unwrap_err(), ApiError::shutting_down());
    }
}
