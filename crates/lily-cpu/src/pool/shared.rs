//! What the threads of a pool share: one word that announces launches, and who sleeps.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use lily_kernels::cpu::{CpuFace, CpuLaunch, Scratch};

use super::share::Cut;

/// How long a thread spins for what it waits for before it sleeps: longer than the gap between two
/// launches, short enough that an idle device leaves the processor alone.
const SPIN: Duration = Duration::from_micros(50);
/// The same on a processor that other programs use too.
const SHORT_SPIN: Duration = Duration::from_micros(1);
/// A thread that comes out of a few spins this late had lost its processor.
const LOST: Duration = Duration::from_micros(500);
/// Spins between two looks at the clock.
const SPINS: usize = 64;
/// Sleepers that a thread wakes before it works; each of them wakes as many.
const WAKES: usize = 2;

/// Workers inside the current launch, in the low part of [`Shared::state`].
const ACTIVE: u64 = (1 << 16) - 1;
/// One worker more that may join the current launch.
const SEAT: u64 = 1 << 16;
/// All of them.
const SEATS: u64 = ACTIVE * SEAT;
/// The current launch may be joined.
const OPEN: u64 = 1 << 32;
/// Workers leave for good.
const STOP: u64 = 1 << 33;
/// The caller sleeps until the last worker has left.
const WAITING: u64 = 1 << 34;
/// One generation; the rest of the state counts them.
const GENERATION: u64 = 1 << 35;
/// Most workers that the state can count.
pub(super) const MOST_WORKERS: usize = ACTIVE as usize;

/// Keeps what different threads write apart: two cache lines, as they are fetched in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Apart<T>(T);

/// One launch.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) face: CpuFace,
    pub(super) launch: &'a CpuLaunch<'a>,
    /// The runs of tiles.
    pub(super) cut: Cut,
    /// The order of the tiles, if not ascending.
    pub(super) order: Option<&'a [usize]>,
}

#[derive(Default)]
pub(super) struct Shared {
    state: Apart<AtomicU64>,
    /// The next run of tiles.
    next: Apart<AtomicUsize>,
    /// Workers that sleep.
    sleeping: Apart<AtomicUsize>,
    /// Sleepers that are still to be woken for the current launch.
    wanted: Apart<AtomicUsize>,
    /// Whether a worker sleeps; cleared by whoever wakes it.
    asleep: Vec<Apart<AtomicBool>>,
    /// The workers, once all are started.
    workers: OnceLock<Vec<Thread>>,
    /// The open launch. Written by the caller while no launch is open and no worker active; read by
    /// workers that joined.
    job: UnsafeCell<Option<Job<'static>>>,
    /// The caller, when it sleeps.
    waiter: Mutex<Option<Thread>>,
    /// How often it did.
    waits: AtomicUsize,
    failed: AtomicBool,
    failure: Mutex<Option<String>>,
}

// SAFETY: `job` is the only part that is not `Sync` by itself; `state` orders its accesses as stated
// there, and a `Job` may be used from several threads.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    pub(super) fn new(workers: usize) -> Self {
        Self { asleep: (0..workers).map(|_| Apart::default()).collect(), ..Self::default() }
    }

    /// Names the workers, all of which have been started.
    pub(super) fn name(&self, workers: Vec<Thread>) {
        let _ = self.workers.set(workers);
    }

    /// Makes ready for the tiles of the next launch.
    pub(super) fn reset(&self) {
        self.next.0.store(0, Ordering::Relaxed);
    }

    /// Opens a launch to `helpers` workers.
    ///
    /// # Safety
    /// Only the caller's thread does so, with no launch open. The job lives until
    /// [`close`](Self::close) has returned, which follows before anything unwinds.
    pub(super) unsafe fn open(&self, job: Job<'_>, generation: u64, helpers: usize) {
        // SAFETY: only the lifetime changes, under the caller's promise.
        let erased = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
        // SAFETY: no launch is open and no worker active, so nobody else looks at it.
        unsafe { *self.job.get() = Some(erased) };
        let seats = helpers.min(MOST_WORKERS) as u64 * SEAT;
        let state = generation.wrapping_mul(GENERATION) | OPEN | seats;
        self.state.0.store(state, Ordering::SeqCst);
    }

    /// Forbids joining, waits until every worker has left the launch, and forgets it.
    pub(super) fn close(&self) {
        self.state.0.fetch_and(!(OPEN | SEATS), Ordering::AcqRel);
        let left = || self.state.0.load(Ordering::Acquire) & ACTIVE == 0;
        if !spin(SPIN, left) {
            // The last worker may have lost its processor: it gets this one.
            *lock(&self.waiter) = Some(thread::current());
            self.waits.fetch_add(1, Ordering::Relaxed);
            self.state.0.fetch_or(WAITING, Ordering::AcqRel);
            while !left() {
                thread::park();
            }
        }
        // SAFETY: the launch is closed and its last worker has left.
        unsafe { *self.job.get() = None };
    }

    /// Joins the open launch, if it is not of the generation `done` and has a seat; gives it with its
    /// generation.
    fn join(&self, done: u64) -> Option<(Job<'static>, u64)> {
        let mut state = self.state.0.load(Ordering::Acquire);
        while is_new(state, done) {
            let joined = state + 1 - SEAT;
            let exchanged = self.state.0.compare_exchange_weak(
                state,
                joined,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match exchanged {
                // SAFETY: this worker is active, so the caller leaves the job alone; it was written
                // before the state that opened it.
                Ok(_) => return unsafe { *self.job.get() }.map(|job| (job, state / GENERATION)),
                Err(found) => state = found,
            }
        }
        None
    }

    /// Leaves the launch that this worker has joined.
    fn leave(&self) {
        let before = self.state.0.fetch_sub(1, Ordering::AcqRel);
        if before & WAITING != 0
            && before & ACTIVE == 1
            && let Some(caller) = lock(&self.waiter).take()
        {
            caller.unpark();
        }
    }

    /// Runs tiles until none is left; how many.
    pub(super) fn work(&self, job: Job<'_>, scratch: &mut Scratch) -> usize {
        let mut done = 0;
        let tiles = AssertUnwindSafe(|| {
            loop {
                let run = job.cut.run(self.next.0.fetch_add(1, Ordering::Relaxed));
                if run.is_empty() {
                    return;
                }
                for i in run {
                    (job.face.run)(job.launch, job.order.map_or(i, |order| order[i]), scratch);
                    done += 1;
                }
            }
        });
        if let Err(cause) = catch_unwind(tiles) {
            lock(&self.failure).get_or_insert(message(&*cause));
            self.failed.store(true, Ordering::Release);
            // Far behind the last run, and far from an overflow.
            self.next.0.store(usize::MAX / 2, Ordering::Relaxed);
        }
        done
    }

    /// Result of the launch that has ended, cleared.
    pub(super) fn outcome(&self) -> Result<(), String> {
        if !self.failed.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        Err(lock(&self.failure).take().unwrap_or_default())
    }

    /// Wakes sleepers until `helpers` of the workers are awake: a few here, and they wake the others.
    pub(super) fn wake(&self, helpers: usize) {
        let sleeping = self.sleeping.0.load(Ordering::SeqCst);
        let awake = self.asleep.len().saturating_sub(sleeping);
        let missing = helpers.saturating_sub(awake);
        self.wanted.0.store(missing, Ordering::Relaxed);
        if sleeping > 0 && missing > 0 {
            self.wake_some();
        }
    }

    fn wake_some(&self) {
        let Some(workers) = self.workers.get() else { return };
        let mut sleepers = workers.iter().zip(&self.asleep);
        for _ in 0..WAKES {
            let one_less = |wanted: usize| wanted.checked_sub(1);
            if self.wanted.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err() {
                return;
            }
            let found = sleepers.find(|(_, asleep)| {
                asleep.0.load(Ordering::Relaxed) && asleep.0.swap(false, Ordering::SeqCst)
            });
            let Some((worker, _)) = found else { return };
            self.sleeping.0.fetch_sub(1, Ordering::SeqCst);
            worker.unpark();
        }
    }

    /// Sends the workers away for good.
    pub(super) fn stop(&self) {
        self.state.0.fetch_or(STOP, Ordering::SeqCst);
    }

    /// A worker's life: joins launches, spins between them, then sleeps.
    pub(super) fn serve(&self, me: usize) {
        let mut scratch = Scratch::default();
        let mut done = u64::MAX;
        let mut patience = SPIN;
        let is_due = |done: u64| {
            let state = self.state.0.load(Ordering::Relaxed);
            state & STOP != 0 || is_new(state, done)
        };
        while self.state.0.load(Ordering::Acquire) & STOP == 0 {
            if let Some((job, generation)) = self.join(done) {
                done = generation;
                self.work(job, &mut scratch);
                self.leave();
                continue;
            }
            let start = Instant::now();
            if spin(patience, || is_due(done)) {
                patience = (2 * patience).min(SPIN);
                continue;
            }
            if start.elapsed() > patience + LOST {
                // Others want this processor: do not spin on it.
                patience = (patience / 2).max(SHORT_SPIN);
            }
            self.sleep(me, done);
            self.wake_some();
        }
    }

    /// Sleeps until woken. The caller opens a launch and then looks for sleepers; a worker says that
    /// it sleeps and then looks for a launch: one of the two sees the other.
    fn sleep(&self, me: usize, done: u64) {
        let asleep = &self.asleep[me].0;
        asleep.store(true, Ordering::SeqCst);
        self.sleeping.0.fetch_add(1, Ordering::SeqCst);
        loop {
            let state = self.state.0.load(Ordering::SeqCst);
            if state & STOP != 0 || is_new(state, done) || !asleep.load(Ordering::SeqCst) {
                break;
            }
            thread::park();
        }
        if asleep.swap(false, Ordering::SeqCst) {
            self.sleeping.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// How often the caller slept until the last worker had left.
    #[cfg(test)]
    pub(super) fn waits(&self) -> usize {
        self.waits.load(Ordering::Relaxed)
    }

    /// Workers that sleep now.
    #[cfg(test)]
    pub(super) fn sleepers(&self) -> usize {
        self.sleeping.0.load(Ordering::SeqCst)
    }
}

/// Whether a launch is open, has a seat, and is not of the generation `done`.
fn is_new(state: u64, done: u64) -> bool {
    state & OPEN != 0 && state & SEATS != 0 && state / GENERATION != done
}

/// Looks for something for a bounded time; whether it came.
fn spin(most: Duration, came: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..SPINS {
            if came() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > most {
            return false;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a panic said.
pub(super) fn message(cause: &(dyn Any + Send)) -> String {
    cause
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| cause.downcast_ref::<&str>().map(|s| (*s).to_string()))
        .unwrap_or_else(|| "panicked".into())
}
