//! Runs the tiles of a launch on a fixed set of threads.
//!
//! The caller is one of the threads and can finish a launch alone; workers join when they are awake.
//! A launch is announced by a new generation in one shared word; the next tiles to run are taken from
//! one counter. Nothing allocates or locks between launches, unless a thread has lost its processor
//! and another waits for it. Whoever waits spins for a bounded time and then sleeps.

mod order;
mod share;
mod shared;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use lily_kernels::cpu::{CpuFace, CpuLaunch, Scratch};

use crate::cores::{Cores, settle};

pub(crate) use order::Shuffle;
pub(crate) use share::Cost;
use share::{Cut, Share};
use shared::{Job, MOST_WORKERS, Shared, message};

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
    /// A pool of `threads` threads, the caller counted; 0 takes what suits the cores. Fewer if the
    /// system refuses to start them.
    pub(crate) fn new(cores: &Cores, threads: usize, shuffle: Option<Shuffle>) -> Self {
        let threads = match threads {
            0 => cores.threads(),
            n => n.min(MOST_WORKERS),
        };
        let shared = Arc::new(Shared::new(threads - 1));
        let start = |(me, place): (usize, Vec<usize>)| {
            let shared = shared.clone();
            let builder = thread::Builder::new().name(format!("lily-cpu-{}", me + 2));
            let life = move || {
                settle(&place);
                shared.serve(me);
            };
            builder.spawn(life).ok()
        };
        let places = cores.places(threads);
        let workers: Vec<_> = places.into_iter().enumerate().map_while(start).collect();
        shared.name(workers.iter().map(|worker| worker.thread().clone()).collect());
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

    /// Runs all tiles of one launch, shared out by what they cost before; the error is the message of
    /// the first panic, after which tiles not yet begun are left out.
    pub(crate) fn run(
        &mut self,
        face: CpuFace,
        launch: &CpuLaunch<'_>,
        cost: &mut Cost,
    ) -> Result<(), String> {
        let tiles =
            catch_unwind(AssertUnwindSafe(|| (face.tiles)(launch))).map_err(|c| message(&*c))?;
        let mut share = cost.share(tiles, self.workers.len());
        if let Some(shuffle) = &mut self.shuffle {
            self.order.clear();
            self.order.extend(0..tiles);
            shuffle.shuffle(&mut self.order);
            // In tests every thread takes part, whatever it costs.
            share = Share {
                cut: Cut::singly(tiles),
                ..Cost::default().share(tiles, self.workers.len())
            };
        }
        let order = self.shuffle.is_some().then_some(&self.order[..]);
        let job = Job { face, launch, cut: share.cut, order };
        let shared = &*self.shared;
        shared.reset();
        if share.helpers > 0 {
            self.generation = self.generation.wrapping_add(1);
            // SAFETY: `&mut self` makes this the only caller, and the launch before was closed. The job
            // lives to the end of this function; nothing unwinds before `close`, since `work` catches
            // panics of tiles.
            unsafe { shared.open(job, self.generation, share.helpers) };
            shared.wake(share.wake);
        }
        let start = Instant::now();
        let done = shared.work(job, &mut self.scratch);
        cost.learn(done, start.elapsed());
        if share.helpers > 0 {
            shared.close();
        }
        shared.outcome()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop();
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches its panics; there is nothing to report here.
            let _ = worker.join();
        }
    }
}
