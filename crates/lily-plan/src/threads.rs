//! Work that several threads share.

use std::panic::resume_unwind;
use std::thread;

/// Runs `work` on at most `count` threads, the caller's among them, and gives what each returns. A system that is short of
/// threads starts fewer: whatever there is to do has to be taken piece by piece by whoever runs. A panic is passed on.
pub fn on_threads<T: Send>(count: usize, work: impl Fn() -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let start = |_| thread::Builder::new().spawn_scoped(scope, &work).ok();
        let others: Vec<_> = (1..count).map_while(start).collect();
        let mut all = vec![work()];
        all.extend(others.into_iter().map(|t| t.join().unwrap_or_else(|p| resume_unwind(p))));
        all
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn as_many_threads_as_asked_for_run_at_once_and_the_caller_is_one() {
        let (barrier, next) = (Barrier::new(3), AtomicUsize::new(0));
        let ids = on_threads(3, || {
            barrier.wait();
            next.fetch_add(1, Ordering::Relaxed);
            thread::current().id()
        });
        assert_eq!((ids.len(), next.into_inner()), (3, 3));
        assert_eq!(ids[0], thread::current().id());
        assert_eq!(on_threads(0, || 7), [7]);
    }
}
