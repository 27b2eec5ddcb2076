//! Threads for work that cannot be interrupted: few of them, and nobody waits for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use lily_chat::Patience;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

/// Deep structures are read by recursion.
const STACK: usize = 64 << 20;

/// Does work on threads of its own, a few at once.
pub(crate) struct Workshop {
    threads: usize,
    turns: Arc<Semaphore>,
    /// Threads whose work nobody waits for any more.
    overdue: Arc<AtomicIsize>,
    /// Longest time of one work, and for its turn to come.
    limit: Duration,
}

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// All threads are at work for others.
    Busy(Duration),
    /// It takes longer than the limit.
    TooLong(Duration),
    /// A fault in the program, or the system gives no thread.
    Failed,
}

/// Somebody waits for the work, which is not done.
const WAITED_FOR: u8 = 0;
/// The work is done.
const DONE: u8 = 1;
/// Nobody waits any more.
const LEFT: u8 = 2;

/// One work, as both sides see it.
struct Work {
    state: AtomicU8,
    overdue: Arc<AtomicIsize>,
    patience: Patience,
}

/// The side that waits: the patience ends with it.
struct Waiting(Arc<Work>);

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.0.state.swap(LEFT, Ordering::AcqRel) == WAITED_FOR {
            self.0.overdue.fetch_add(1, Ordering::AcqRel);
            self.0.patience.end();
        }
    }
}

/// The side that works; gives its turn back at the end, whichever way that comes.
struct Turn {
    work: Arc<Work>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.work.state.swap(DONE, Ordering::AcqRel) == LEFT {
            self.work.overdue.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Workshop {
    /// A workshop of so many threads.
    pub fn new(threads: usize, limit: Duration) -> Self {
        let turns = Arc::new(Semaphore::new(threads));
        Self { threads, turns, overdue: Arc::default(), limit }
    }

    /// Does some work. Once nobody waits for it any more its patience ends; its thread is taken until
    /// the work has noticed.
    pub async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Patience) -> T + Send + 'static,
    ) -> Result<T, Missed> {
        // Those threads may stay so: nobody waits for them in vain.
        if usize::try_from(self.overdue.load(Ordering::Acquire)).unwrap_or(0) >= self.threads {
            return Err(Missed::Busy(self.limit));
        }
        let turn = timeout(self.limit, Arc::clone(&self.turns).acquire_owned());
        let permit = turn.await.map_err(|_| Missed::Busy(self.limit))?;
        let _permit = permit.map_err(|_| Missed::Failed)?;
        let shared = Arc::new(Work {
            state: AtomicU8::new(WAITED_FOR),
            overdue: Arc::clone(&self.overdue),
            patience: Patience::default(),
        });
        let turn = Turn { work: Arc::clone(&shared), _permit };
        let (sender, receiver) = oneshot::channel();
        let run = move || {
            let done = work(&turn.work.patience);
            // Before whoever waits hears of it.
            drop(turn);
            let _ = sender.send(done);
        };
        let thread = thread::Builder::new().name("lily-format".into()).stack_size(STACK);
        thread.spawn(run).map_err(|_| Missed::Failed)?;
        let _waiting = Waiting(shared);
        match timeout(self.limit, receiver).await {
            Ok(done) => done.map_err(|_| Missed::Failed),
            Err(_) => Err(Missed::TooLong(self.limit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Work that ends when it is told to.
    fn stubborn() -> (Sender<()>, impl FnOnce(&Patience) -> usize + Send + 'static) {
        let (end, ended): (_, Receiver<()>) = channel();
        let work = move |_: &Patience| {
            let _ = ended.recv();
            7
        };
        (end, work)
    }

    async fn until(holds: impl Fn() -> bool) {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn work_is_done_and_a_fault_in_it_is_no_other_ones() {
        let shop = Workshop::new(1, Duration::from_secs(600));
        assert_eq!(shop.work(|_| 3).await, Ok(3));
        assert_eq!(shop.work(|_| -> usize { panic!("a fault") }).await, Err(Missed::Failed));
        assert_eq!(shop.work(|_| 4).await, Ok(4));
        assert_eq!(shop.overdue.load(Ordering::Acquire), 0);
    }

    #[tokio::test]
    async fn threads_are_few_and_overdue_work_is_not_waited_for() {
        let limit = Duration::from_millis(50);
        let shop = Workshop::new(2, limit);
        let (first_end, first) = stubborn();
        let (second_end, second) = stubborn();
        let late = tokio::join!(shop.work(first), shop.work(second));
        assert_eq!(late, (Err(Missed::TooLong(limit)), Err(Missed::TooLong(limit))));
        // Both threads are taken, perhaps for ever: the next one hears so at once.
        assert_eq!(shop.work(|_| 1).await, Err(Missed::Busy(limit)));
        drop(first_end);
        until(|| shop.turns.available_permits() == 1).await;
        assert_eq!(shop.work(|_| 1).await, Ok(1));
        drop(second_end);
        until(|| shop.turns.available_permits() == 2).await;
        assert_eq!(shop.overdue.load(Ordering::Acquire), 0);
    }

    #[tokio::test]
    async fn whoever_leaves_ends_the_patience_with_the_work() {
        let shop = Workshop::new(1, Duration::from_secs(600));
        let work = |patience: &Patience| {
            while !patience.has_ended() {
                thread::yield_now();
            }
        };
        let left = timeout(Duration::from_millis(20), shop.work(work)).await;
        assert!(left.is_err());
        until(|| shop.turns.available_permits() == 1).await;
        assert_eq!(shop.work(|_| 1).await, Ok(1));
    }
}
