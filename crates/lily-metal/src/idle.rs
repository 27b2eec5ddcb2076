//! How long an idle device keeps its memory resident.
//!
//! macOS takes memory of a GPU that is idle for about a second, and the next request is slow. A heartbeat asks
//! for it again and again for a stated time after the last work; then the device lets go on purpose, so that
//! other programs can have the memory.

use std::time::Duration;

/// Between two heartbeats: below the second after which macOS takes memory.
pub const BEAT: Duration = Duration::from_millis(500);

/// How long memory is kept after the last work, unless told otherwise.
pub const KEEP: Duration = Duration::from_secs(300);

/// What a heartbeat does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// Asks for residency again.
    Request,
    /// Lets go.
    Release,
    /// Has let go already.
    Nothing,
}

/// Whether the memory is kept.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    keep: Duration,
    released: bool,
}

impl Idle {
    /// Keeps memory for a time after the last work.
    pub fn new(keep: Duration) -> Self {
        Self { keep, released: false }
    }

    /// What to do, given the time since the last work.
    pub fn beat(&mut self, idle: Duration) -> Beat {
        if idle <= self.keep {
            self.released = false;
            return Beat::Request;
        }
        match std::mem::replace(&mut self.released, true) {
            false => Beat::Release,
            true => Beat::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_for_the_time_released_once_and_kept_again_after_work() {
        let mut idle = Idle::new(Duration::from_secs(2));
        let beats: Vec<Beat> = [0, 1, 2, 3, 4, 0, 1, 9]
            .map(|seconds| idle.beat(Duration::from_secs(seconds)))
            .to_vec();
        use Beat::{Nothing, Release, Request};
        let wanted = [Request, Request, Request, Release, Nothing, Request, Request, Release];
        assert_eq!(beats, wanted);
    }
}
