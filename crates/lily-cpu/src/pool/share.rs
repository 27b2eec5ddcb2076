//! How the tiles of a launch are shared out: by what they cost when the launch ran last.

use std::ops::Range;
use std::time::Duration;

/// Work that is worth another thread: joining a launch moves a few cache lines between cores, which
/// takes some hundred nanoseconds.
const WORTH_JOINING_NS: f32 = 2_000.0;
/// Work for each thread that is worth waking it: a sleeper needs tens of microseconds to come.
const WORTH_WAKING_NS: f32 = 20_000.0;
/// Least work taken at a time, so that threads do not wait for the counter of tiles.
const LEAST_RUN_NS: f32 = 1_000.0;
/// Parts of a thread's even share that are taken at a time: at first, while there is much to do, and
/// towards the end, when it matters that all are done at once.
const FIRST: usize = 4;
/// See there.
const LAST: usize = 16;

/// What a tile of a launch costs, measured whenever the launch runs. It decides who runs which tile
/// and never what a tile computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// Nanoseconds of a tile; 0 before the first run.
    tile_ns: f32,
}

impl Cost {
    /// Takes in that `tiles` tiles took one thread that long. A thread that lost its processor
    /// meanwhile saw more than the tiles cost, so the estimate grows slowly and falls at once.
    pub(super) fn learn(&mut self, tiles: usize, took: Duration) {
        if tiles == 0 {
            return;
        }
        let seen = (took.as_nanos() as f32 / tiles as f32).max(1.0);
        self.tile_ns = match self.tile_ns {
            0.0 => seen,
            before => before + (seen.min(2.0 * before) - before) / 2.0,
        };
    }

    /// How a launch of `tiles` tiles is shared with at most `workers` other threads.
    pub(super) fn share(self, tiles: usize, workers: usize) -> Share {
        let most = workers.min(tiles.saturating_sub(1));
        if self.tile_ns == 0.0 {
            return Share { helpers: most, wake: most, cut: Cut::new(tiles, most + 1, 1) };
        }
        let total = self.tile_ns * tiles as f32;
        let worth = |each: f32| most.min((total / each) as usize);
        let helpers = worth(WORTH_JOINING_NS);
        let least = (LEAST_RUN_NS / self.tile_ns).ceil() as usize;
        Share {
            helpers,
            wake: worth(WORTH_WAKING_NS).min(helpers),
            cut: Cut::new(tiles, helpers + 1, least),
        }
    }
}

/// How a launch is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Workers that may join.
    pub(super) helpers: usize,
    /// Of them, those for whom a sleeper may be woken.
    pub(super) wake: usize,
    /// The runs of tiles that are taken at a time.
    pub(super) cut: Cut,
}

/// Tiles cut into runs, in lanes side by side: one lane for each thread, with some large runs and then
/// small ones. Threads that take the runs in turn stay in their lanes, so that each reads on where it
/// stopped, and none loses anything when it changes them. The n-th run is known without the others, so
/// threads share one counter and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    tiles: usize,
    lanes: usize,
    /// Number of large runs of a lane.
    first: usize,
    large: usize,
    small: usize,
}

impl Cut {
    /// Cuts for `threads` threads into runs of at least `least` tiles. Half of the tiles lie in large
    /// runs: a thread that is stopped inside one holds a quarter of its share.
    pub(super) fn new(tiles: usize, threads: usize, least: usize) -> Self {
        let even = |parts: usize| tiles / (threads * parts);
        // No run is longer than an even share, however cheap tiles are.
        let least = least.min(tiles.div_ceil(threads)).max(1);
        Self {
            tiles,
            lanes: threads,
            first: FIRST / 2,
            large: even(FIRST).max(least),
            small: even(LAST).max(least),
        }
    }

    /// Runs of one tile.
    pub(super) fn singly(tiles: usize) -> Self {
        Self { tiles, lanes: 1, first: 0, large: 1, small: 1 }
    }

    /// The tiles of run `n`; empty behind the last, because lanes that are a tile longer come first.
    pub(super) fn run(self, n: usize) -> Range<usize> {
        let (lane, n) = (n % self.lanes, n / self.lanes);
        let (even, longer) = (self.tiles / self.lanes, self.tiles % self.lanes);
        let begin = lane * even + lane.min(longer);
        let tiles = even + usize::from(lane < longer);
        let start = |n: usize| {
            let small = n.saturating_sub(self.first);
            let large = n.min(self.first) * self.large;
            begin + small.saturating_mul(self.small).saturating_add(large).min(tiles)
        };
        start(n)..start(n + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tile_ns: f32) -> Cost {
        Cost { tile_ns }
    }

    /// Every run in the order of their numbers.
    fn runs(cut: Cut) -> Vec<Range<usize>> {
        (0..).map(|n| cut.run(n)).take_while(|run| !run.is_empty()).collect()
    }

    #[test]
    fn runs_cover_every_tile_once() {
        let all = [0, 1, 2, 3, 7, 64, 97, 1000, 4099];
        for &tiles in if cfg!(miri) { &all[..5] } else { &all[..] } {
            for threads in [1, 2, 3, 32, 200] {
                for least in [0, 1, 5, 10_000] {
                    let cut = Cut::new(tiles, threads, least);
                    let mut runs = runs(cut);
                    let count = runs.len();
                    assert!((count..count + 2 * threads).all(|n| cut.run(n).is_empty()));
                    assert!(runs.iter().all(|run| run.len() <= tiles.div_ceil(threads)));
                    runs.sort_by_key(|run| run.start);
                    let ends = std::iter::once(0).chain(runs.iter().map(|run| run.end));
                    let starts = runs.iter().map(|run| run.start).chain([tiles]);
                    assert!(ends.eq(starts), "{threads} threads, at least {least}: {runs:?}");
                }
            }
        }
        assert_eq!(Cut::singly(3).run(2), 2..3);
    }

    #[test]
    fn threads_that_take_turns_read_on_and_runs_get_shorter() {
        for (tiles, threads) in [(97, 2), (1000, 3), (4099, 32)] {
            let runs = runs(Cut::new(tiles, threads, 1));
            for thread in 0..threads {
                let own: Vec<_> = runs.iter().skip(thread).step_by(threads).collect();
                assert!(own.is_sorted_by(|a, b| a.end == b.start && a.len() >= b.len()), "{own:?}");
            }
        }
    }

    #[test]
    fn a_thread_that_is_stopped_holds_a_small_part_of_the_launch() {
        for threads in [2, 8, 32] {
            let tiles = 64 * threads;
            let longest = Cut::new(tiles, threads, 1).run(0).len();
            assert!(longest * threads * 4 <= tiles, "{longest} of {tiles}");
        }
    }

    #[test]
    fn short_launches_are_run_by_few_threads_and_wake_nobody() {
        // Unknown: everybody who has something to do.
        assert_eq!(of(0.0).share(100, 7).helpers, 7);
        assert_eq!(of(0.0).share(3, 7).helpers, 2);
        assert_eq!(of(0.0).share(0, 7).helpers, 0);
        // A microsecond in all is done before anybody comes.
        assert_eq!(of(10.0).share(100, 7).helpers, 0);
        let some = of(100.0).share(100, 31);
        assert_eq!((some.helpers, some.wake), (5, 0));
        let long = of(50_000.0).share(100, 31);
        assert_eq!((long.helpers, long.wake), (31, 31));
        assert_eq!(of(1e9).share(2, 31).helpers, 1);
    }

    #[test]
    fn cheap_tiles_are_taken_many_at_a_time() {
        let cheap = of(10.0).share(500, 1).cut;
        assert_eq!([0, 1, 2, 5].map(|n| cheap.run(n)), [0..100, 250..350, 100..200, 450..500]);
        assert!(cheap.run(6).is_empty());
        let dear = of(5_000.0).share(64, 1).cut;
        assert_eq!([0, 10].map(|n| dear.run(n).len()), [8, 2]);
    }

    #[test]
    fn a_stopped_thread_does_not_spoil_the_estimate() {
        let mut cost = Cost::default();
        cost.learn(0, Duration::from_secs(1));
        assert_eq!(cost, Cost::default());
        cost.learn(10, Duration::from_micros(100));
        assert_eq!(cost.tile_ns, 10_000.0);
        cost.learn(1, Duration::from_millis(30));
        assert_eq!(cost.tile_ns, 15_000.0, "half of the way to at most twice as much");
        for _ in 0..20 {
            cost.learn(10, Duration::from_micros(100));
        }
        assert!((cost.tile_ns - 10_000.0).abs() < 1.0, "{cost:?}");
    }
}
