//! The thread that owns the engine and runs several jobs side by side.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lily_model::engine::{CacheUse, SequenceId};
use lily_text::Tokenizer;
use tokio::sync::watch;

use crate::Generator;
use crate::error::ApiError;
use crate::queue::{Job, Queue};
use crate::stream::{Stream, Turned, refuse};
use crate::turns::{Pace, Turns};
use crate::update::Update;

/// Tokens of a turn for every step that the engine runs ahead: each turn begins without any.
const TURN_PER_STEP_AHEAD: usize = 4;

/// Tokens that a request waits for while another one reads them: fewer are read as quickly.
const WORTH_WAITING: usize = 64;

/// Grammars of replies nest.
const STACK: usize = 16 << 20;

/// What the thread shares with the connections.
pub(crate) struct Worker {
    pub queue: Queue,
    /// Set when the running jobs must end, whoever still listens.
    abort: AtomicBool,
    running: AtomicUsize,
    /// What is kept of earlier requests.
    cache: Mutex<CacheUse>,
    /// Why nothing can be run.
    fault: Mutex<Option<String>>,
    /// Why nothing will ever be run again in this program.
    lost: watch::Sender<Option<String>>,
}

impl Worker {
    /// Starts the thread; it ends when the queue is closed and nothing runs any more. A chunk beside
    /// running streams takes about `pause` at most.
    pub fn start(
        generator: Generator,
        tokenizer: Tokenizer,
        queue_limit: usize,
        pause: Duration,
        lost: watch::Sender<Option<String>>,
    ) -> io::Result<Arc<Self>> {
        let worker = Arc::new(Self { lost, ..Self::new(queue_limit, generator.sessions()) });
        let shared = Arc::clone(&worker);
        thread::Builder::new()
            .name("lily-engine".into())
            .stack_size(STACK)
            .spawn(move || Floor::new(&shared, generator, &tokenizer, pause).work())
            .map_err(|error| {
                io::Error::new(error.kind(), format!("cannot start the model's thread: {error}"))
            })?;
        Ok(worker)
    }

    fn new(queue_limit: usize, sessions: usize) -> Self {
        Self {
            queue: Queue::new(queue_limit, sessions),
            abort: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            cache: Mutex::default(),
            fault: Mutex::default(),
            lost: watch::Sender::default(),
        }
    }

    /// Ends the running jobs within one chunk or token each.
    pub fn abort(&self) {
        self.abort.store(true, Ordering::Relaxed);
    }

    /// Jobs that are running.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    /// Why nothing can be run: the device failed, and a trial after that as well. The next request
    /// tries again.
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is kept of earlier requests, as it was when one last began or ended.
    pub fn cache(&self) -> CacheUse {
        *self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_fault(&self, fault: Option<String>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }
}

/// What the thread has for itself.
struct Floor<'a> {
    worker: &'a Worker,
    generator: Generator,
    tokenizer: &'a Tokenizer,
    /// In the order of arrival.
    streams: Vec<Stream>,
    started: u64,
    turns: Turns,
    pace: Pace,
    /// Tokens that a stream generates in one turn.
    turn: usize,
}

impl<'a> Floor<'a> {
    fn new(
        worker: &'a Worker,
        generator: Generator,
        tokenizer: &'a Tokenizer,
        pause: Duration,
    ) -> Self {
        let steps_ahead = match &generator {
            Generator::Engine(engine) => engine.options().steps_ahead,
            Generator::Script { .. } => 0,
        };
        Self {
            worker,
            generator,
            tokenizer,
            streams: Vec::new(),
            started: 0,
            turns: Turns::default(),
            pace: Pace::new(pause),
            turn: (steps_ahead * TURN_PER_STEP_AHEAD).max(1),
        }
    }

    fn work(mut self) {
        self.count();
        while self.admit() {
            self.round();
        }
    }

    /// Begins waiting jobs while sequences are free. Waits for one if nothing runs; `false` once the
    /// queue is closed and nothing runs.
    fn admit(&mut self) -> bool {
        while self.streams.len() < self.generator.sessions() {
            let job = if self.streams.is_empty() {
                self.worker.queue.pop()
            } else {
                self.worker.queue.try_pop()
            };
            match job {
                Some(job) => self.begin(job),
                None => return !self.streams.is_empty(),
            }
        }
        true
    }

    fn begin(&mut self, job: Job) {
        if self.worker.fault().is_some() {
            self.try_engine();
        }
        if let Some(fault) = self.worker.fault() {
            self.count();
            return job.updates.send(Update::Failed(ApiError::engine_failed(&fault)));
        }
        self.started += 1;
        let started = Stream::start(self.started, &mut self.generator, self.tokenizer, job);
        match started {
            Ok(stream) => {
                self.streams.push(stream);
                self.count();
            }
            Err(refused) => {
                self.count();
                let (job, turned) = *refused;
                let is_dangerous = turned.endangers_engine();
                self.free_lost();
                refuse(&job, turned);
                if is_dangerous {
                    self.try_engine();
                }
            }
        }
    }

    /// A turn for every stream, and a chunk of one prompt.
    fn round(&mut self) {
        let is_over = self.worker.abort.load(Ordering::Relaxed);
        let streams = std::mem::take(&mut self.streams).into_iter();
        let (over, staying) = streams.partition(|stream| is_over || stream.is_left());
        self.streams = staying;
        for stream in over {
            self.retire(stream, Turned::Ended);
        }
        let busy = self.streams.iter().filter(|stream| !self.is_waiting(stream));
        let busy: Vec<_> = busy.map(|stream| (stream.id, stream.stage())).collect();
        let round = self.turns.round(busy.into_iter());
        for &id in &round.decode {
            for _ in 0..self.turn {
                if !self.advance(id) {
                    break;
                }
            }
        }
        let Some(id) = round.prefill else { return };
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id) else { return };
        // Nobody waits for the end of the chunk if nobody generates.
        stream.set_chunk(if round.decode.is_empty() { usize::MAX } else { self.pace.chunk() });
        let (before, start) = (stream.tokens_read(), Instant::now());
        self.advance(id);
        if let Some(stream) = self.streams.iter().find(|stream| stream.id == id) {
            self.pace.note(stream.tokens_read() - before, start.elapsed());
        }
    }

    /// Whether a stream should not begin yet, because one that came before it is reading the same
    /// beginning and will keep it: the choices of a request, a retry, agents with one system prompt.
    /// It never waits for one that has left or that itself waits for it.
    fn is_waiting(&self, stream: &Stream) -> bool {
        let Generator::Engine(engine) = &self.generator else { return false };
        let earlier = || self.streams.iter().filter(|other| other.id < stream.id);
        let Some(prompt) = stream.unread_prompt() else { return false };
        if earlier().all(|other| !other.may_save()) {
            return false;
        }
        let least = engine.reusable(prompt) + WORTH_WAITING;
        // Nobody would gain by what does not fit into the cache.
        let most = engine.longest_kept();
        earlier().any(|other| other.will_save(prompt, least, most))
    }

    /// Moves one stream on; `false` if it has ended.
    fn advance(&mut self, id: u64) -> bool {
        let Some(at) = self.streams.iter().position(|stream| stream.id == id) else { return false };
        let turned = self.streams[at].advance(&mut self.generator, &self.worker.abort);
        if matches!(turned, Turned::GoesOn) {
            return true;
        }
        let is_dangerous = turned.endangers_engine();
        let stream = self.streams.remove(at);
        self.retire(stream, turned);
        if is_dangerous {
            self.try_engine();
        }
        false
    }

    /// Gives the sequence back, then tells the client.
    fn retire(&mut self, stream: Stream, turned: Turned) {
        stream.close(&mut self.generator, &turned);
        self.count();
        let time = stream.end(self.tokenizer, &self.worker.abort, turned);
        self.worker.queue.note_served(time);
    }

    /// Finds out whether the engine can still be used after a failure.
    fn try_engine(&mut self) {
        let Generator::Engine(engine) = &mut self.generator else { return };
        let fault = match catch_unwind(AssertUnwindSafe(|| engine.probe())) {
            Ok(Ok(())) => None,
            Ok(Err(error)) => {
                if error.is_device_lost() {
                    self.worker.lost.send_replace(Some(error.to_string()));
                }
                Some(error.to_string())
            }
            Err(_) => Some("a fault in the program".into()),
        };
        self.free_lost();
        self.worker.set_fault(fault);
    }

    /// Closes sequences that a fault has left open without an owner.
    fn free_lost(&mut self) {
        let Generator::Engine(engine) = &mut self.generator else { return };
        let owned: Vec<SequenceId> = self.streams.iter().filter_map(Stream::sequence).collect();
        let lost: Vec<SequenceId> =
            engine.sequences().filter(|sequence| !owned.contains(sequence)).collect();
        for sequence in lost {
            let _ = catch_unwind(AssertUnwindSafe(|| engine.close(sequence)));
        }
    }

    fn count(&self) {
        // First: who reads that nothing runs may come at once.
        self.worker.queue.set_running(self.streams.len());
        self.worker.running.store(self.streams.len(), Ordering::Release);
        if let Generator::Engine(engine) = &self.generator {
            *self.worker.cache.lock().unwrap_or_else(PoisonError::into_inner) = engine.cache_use();
        }
    }
}

#[cfg(test)]
mod tests;
