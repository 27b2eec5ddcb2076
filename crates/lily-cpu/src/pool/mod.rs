//! Runs the tiles of a launch on a fixed set of threads.
//!
//! The caller is one of the threads and can finish a launch alone; workers join when they are awake.
//! A launch is announced by a new generation in [`Shared::state`]; the next tiles to run are taken
//! from [`Shared::next`]. Nothing allocates or locks between launches.

mod order;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lily_kernels::cpu::{CpuFace, CpuLaunch, Scratch};

pub(crate) use order::Shuffle;

/// How long a worker without work spins before it sleeps: longer than the gap between two launches,
/// short enough that an idle device leaves the processor alone.
const SPIN: Duration = Duration::from_micros(50);
/// Spins between two looks at the clock.
const SPINS: usize = 64;
/// Runs of tiles each thread takes from an evenly shared launch; more balance better, fewer keep the
/// threads off the shared counter.
const RUNS: usize = 16;

/// Workers inside the current launch, in the low half of [`Shared::state`].
const ACTIVE: u64 = (1 << 32) - 1;
/// The current launch may be joined.
const OPEN: u64 = 1 << 32;
/// Workers leave for good.
const STOP: u64 = 1 << 33;
/// One generation; the rest of the state counts them.
const GENERATION: u64 = 1 << 34;

/// Keeps what different threads write apart: two cache lines, as they are fetched in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Apart<T>(T);

/// One launch.
#[derive(Clone, Copy)]
struct Job<'a> {
    face: CpuFace,
    launch: &'a CpuLaunch<'a>,
    tiles: usize,
    /// Tiles taken at a time.
    run: usize,
    /// The order of the tiles, if not ascending.
    order: Option<&'a [usize]>,
}

struct Shared {
    state: Apart<AtomicU64>,
    next: Apart<AtomicUsize>,
    /// Workers that sleep.
    sleeping: Apart<AtomicUsize>,
    /// Whether a worker sleeps; cleared by whoever wakes it.
    asleep: Vec<Apart<AtomicBool>>,
    /// The open launch. Written by the caller while no launch is open and no worker active; read by
    /// workers that joined.
    job: UnsafeCell<Option<Job<'static>>>,
    failed: AtomicBool,
    failure: Mutex<Option<String>>,
}

// SAFETY: `job` is the only part that is not `Sync` by itself; `state` orders its accesses as stated
// there, and a `Job` may be used from several threads.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// Threads with their scratch memory.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    scratch: Scratch,
    generation: u64,
    shuffle: Option<Shuffle>,
    order: Vec<usize>,
}

impl Pool {
    /// A pool of `threads` threads, the caller counted; 0 takes as many as the machine, or its
    /// container, runs at once. Fewer if the system refuses to start them.
    pub(crate) fn new(threads: usize, shuffle: Option<Shuffle>) -> Self {
        let threads = match threads {
            0 => thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        let shared = Arc::new(Shared {
            state: Apart::default(),
            next: Apart::default(),
            sleeping: Apart::default(),
            asleep: (1..threads).map(|_| Apart::default()).collect(),
            job: UnsafeCell::new(None),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        });
        let start = |me: usize| {
            let shared = shared.clone();
            let builder = thread::Builder::new().name(format!("lily-cpu-{}", me + 1));
            builder.spawn(move || serve(&shared, me)).ok()
        };
        let workers = (0..threads - 1).map_while(start).collect();
        let scratch = Scratch::default();
        Self { shared, workers, scratch, generation: 0, shuffle, order: Vec::new() }
    }

    /// Threads that run tiles.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The order of tests, if asked for.
    pub(crate) fn shuffle(&mut self) -> Option<&mut Shuffle> {
        self.shuffle.as_mut()
    }

    /// Runs all tiles of one launch; the error is the message of the first panic, after which tiles
    /// not yet begun are left out.
    pub(crate) fn run(&mut self, face: CpuFace, launch: &CpuLaunch<'_>) -> Result<(), String> {
        let tiles =
            catch_unwind(AssertUnwindSafe(|| (face.tiles)(launch))).map_err(|c| message(&*c))?;
        if let Some(shuffle) = &mut self.shuffle {
            self.order.clear();
            self.order.extend(0..tiles);
            shuffle.shuffle(&mut self.order);
        }
        let order = self.shuffle.is_some().then_some(&self.order[..]);
        let run = if order.is_some() { 1 } else { (tiles / (self.threads() * RUNS)).max(1) };
        let job = Job { face, launch, tiles, run, order };
        let shared = &*self.shared;
        shared.next.0.store(0, Ordering::Relaxed);
        let helpers = self.workers.len().min(tiles.saturating_sub(1));
        if helpers == 0 {
            work(shared, job, &mut self.scratch);
            return shared.outcome();
        }
        // SAFETY: only the lifetime changes. The job is taken back below, before this function
        // returns, when no worker uses it; nothing in between unwinds.
        let erased = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
        // SAFETY: no launch is open and no worker active, so nobody else looks at it.
        unsafe { *shared.job.get() = Some(erased) };
        self.generation = self.generation.wrapping_add(GENERATION);
        shared.state.0.store(self.generation | OPEN, Ordering::SeqCst);
        self.wake(helpers);
        work(shared, job, &mut self.scratch);
        shared.close();
        // SAFETY: the launch is closed and its last worker has left.
        unsafe { *shared.job.get() = None };
        shared.outcome()
    }

    /// Wakes sleeping workers until `helpers` are awake.
    fn wake(&self, helpers: usize) {
        let sleeping = self.shared.sleeping.0.load(Ordering::SeqCst);
        if sleeping == 0 {
            return;
        }
        let mut missing = helpers.saturating_sub(self.workers.len().saturating_sub(sleeping));
        for (worker, asleep) in self.workers.iter().zip(&self.shared.asleep) {
            if missing == 0 {
                return;
            }
            if asleep.0.swap(false, Ordering::SeqCst) {
                self.shared.sleeping.0.fetch_sub(1, Ordering::SeqCst);
                worker.thread().unpark();
                missing -= 1;
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.0.fetch_or(STOP, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches its panics; there is nothing to report here.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Forbids joining and waits until every worker has left the launch.
    fn close(&self) {
        self.state.0.fetch_and(!OPEN, Ordering::AcqRel);
        let mut turns = 0u32;
        while self.state.0.load(Ordering::Acquire) & ACTIVE != 0 {
            // A worker may have lost its processor to another program: then let it run.
            match turns {
                0..1000 => std::hint::spin_loop(),
                _ => thread::yield_now(),
            }
            turns = turns.saturating_add(1);
        }
    }

    /// Joins the open launch, if it is not of the generation `done`.
    fn join(&self, done: u64) -> Option<Job<'static>> {
        let mut state = self.state.0.load(Ordering::Acquire);
        while is_new(state, done) {
            match self.state.0.compare_exchange_weak(
                state,
                state + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                // SAFETY: this worker is active, so the caller leaves the job alone; it was written
                // before the state that opened it.
                Ok(_) => return unsafe { *self.job.get() },
                Err(found) => state = found,
            }
        }
        None
    }

    fn fail(&self, reason: String) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(reason);
        self.failed.store(true, Ordering::Release);
    }

    /// Result of the launch that has ended, cleared.
    fn outcome(&self) -> Result<(), String> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.failed.store(false, Ordering::Release);
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        Err(failure.take().unwrap_or_default())
    }
}

/// Whether a launch is open that is not of the generation `done`.
fn is_new(state: u64, done: u64) -> bool {
    state & OPEN != 0 && state / GENERATION != done
}

/// Runs tiles until none is left.
fn work(shared: &Shared, job: Job<'_>, scratch: &mut Scratch) {
    let tiles = AssertUnwindSafe(|| {
        loop {
            let first = shared.next.0.fetch_add(job.run, Ordering::Relaxed);
            if first >= job.tiles {
                return;
            }
            for i in first..(first + job.run).min(job.tiles) {
                (job.face.run)(job.launch, job.order.map_or(i, |order| order[i]), scratch);
            }
        }
    });
    if let Err(cause) = catch_unwind(tiles) {
        shared.fail(message(&*cause));
        shared.next.0.store(job.tiles, Ordering::Relaxed);
    }
}

/// A worker's life: joins launches, spins between them, then sleeps.
fn serve(shared: &Shared, me: usize) {
    let mut scratch = Scratch::default();
    let mut done = u64::MAX;
    while shared.state.0.load(Ordering::Acquire) & STOP == 0 {
        if let Some(job) = shared.join(done) {
            // The generation stays while this worker is active.
            done = shared.state.0.load(Ordering::Relaxed) / GENERATION;
            work(shared, job, &mut scratch);
            shared.state.0.fetch_sub(1, Ordering::Release);
        } else if !spin(shared, done) {
            sleep(shared, &shared.asleep[me].0, done);
        }
    }
}

/// Waits a short time; whether there may be something to do.
fn spin(shared: &Shared, done: u64) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..SPINS {
            let state = shared.state.0.load(Ordering::Relaxed);
            if state & STOP != 0 || is_new(state, done) {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN {
            return false;
        }
    }
}

/// Sleeps until woken. The caller opens a launch and then looks for sleepers; a worker says that it
/// sleeps and then looks for a launch: one of the two sees the other.
fn sleep(shared: &Shared, asleep: &AtomicBool, done: u64) {
    asleep.store(true, Ordering::SeqCst);
    shared.sleeping.0.fetch_add(1, Ordering::SeqCst);
    loop {
        let state = shared.state.0.load(Ordering::SeqCst);
        if state & STOP != 0 || is_new(state, done) || !asleep.load(Ordering::SeqCst) {
            break;
        }
        thread::park();
    }
    if asleep.swap(false, Ordering::SeqCst) {
        shared.sleeping.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What a panic said.
fn message(cause: &(dyn Any + Send)) -> String {
    cause
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| cause.downcast_ref::<&str>().map(|s| (*s).to_string()))
        .unwrap_or_else(|| "panicked".into())
}
