use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lily_kernels::cpu::{Numerics, Operand, SharedSlice, Simd};

use super::*;

/// Longer than anything takes, however busy the machine is.
const FOREVER: Duration = Duration::from_secs(60);

fn pool(threads: usize) -> Pool {
    Pool::new(&Cores::default(), threads, None)
}

/// Waits for something that another thread does.
fn wait_for(what: &str, came: impl Fn() -> bool) {
    let start = Instant::now();
    while !came() {
        assert!(start.elapsed() < FOREVER, "{what} never came");
        thread::yield_now();
    }
}

fn no_operands() -> CpuLaunch<'static> {
    let simd = Simd::detect();
    CpuLaunch { args: &[], operands: &[], numerics: Numerics::Exact, simd, stamp: 0 }
}

/// Adds 1 to element `tile`, and fails at the tile in the arguments.
const COUNT: CpuFace = CpuFace {
    tiles: |l| l.i32(0).len(),
    run: |l, tile, scratch| {
        scratch.floats.push(1.0);
        assert!(tile as i32 != l.args::<i32>(), "tile {tile} is bad");
        // SAFETY: each tile has its own element.
        unsafe { l.i32(0).write(tile..tile + 1)[0] += 1 };
    },
};

fn run(pool: &mut Pool, counts: &mut [i32], bad: i32) -> Result<(), String> {
    let args = bad.to_ne_bytes();
    let operands = [Operand::I32(SharedSlice::new(counts))];
    let launch = CpuLaunch {
        args: &args,
        operands: &operands,
        numerics: Numerics::Exact,
        simd: Simd::detect(),
        stamp: 0,
    };
    pool.run(COUNT, &launch, &mut Cost::default())
}

#[test]
fn every_tile_runs_once_in_a_thousand_launches_of_any_size() {
    let (launches, spread) = if cfg!(miri) { (20, 5) } else { (1000, 70) };
    for threads in 1..=8 {
        for shuffle in [None, Some(Shuffle::new(7))] {
            let mut pool = Pool::new(&Cores::default(), threads, shuffle);
            assert_eq!(pool.threads(), threads);
            for i in 0..launches {
                let mut counts = vec![0; i % spread];
                run(&mut pool, &mut counts, -1).unwrap();
                assert!(counts.iter().all(|&n| n == 1), "{threads} threads, launch {i}");
            }
        }
    }
}

#[test]
fn workers_that_went_to_sleep_come_back() {
    let mut pool = pool(4);
    for pause_us in [0, 20, 60, 200, 2000, 0, 500] {
        thread::sleep(Duration::from_micros(pause_us));
        let mut counts = vec![0; 40];
        run(&mut pool, &mut counts, -1).unwrap();
        assert_eq!(counts, [1; 40]);
    }
}

#[test]
fn a_panic_in_any_tile_ends_the_launch_with_its_message_and_the_pool_lives_on() {
    for threads in [1, 2, 5] {
        let mut pool = pool(threads);
        for bad in [0, 1, 17, 99] {
            let mut counts = vec![0; 100];
            let failure = run(&mut pool, &mut counts, bad).unwrap_err();
            assert_eq!(failure, format!("tile {bad} is bad"));
            let mut counts = vec![0; 100];
            run(&mut pool, &mut counts, -1).unwrap();
            assert_eq!(counts, [1; 100], "{threads} threads");
        }
    }
}

#[test]
fn several_threads_take_part() {
    /// Tile `i` waits until the other tile has begun: this ends only if two threads run them.
    const MEET: CpuFace = CpuFace {
        tiles: |_| 2,
        run: |_, _, _| {
            static BEGUN: AtomicUsize = AtomicUsize::new(0);
            BEGUN.fetch_add(1, Ordering::SeqCst);
            wait_for("a second thread", || BEGUN.load(Ordering::SeqCst) >= 2);
        },
    };
    pool(2).run(MEET, &no_operands(), &mut Cost::default()).unwrap();
}

/// The worker's tile ends when the caller has gone to sleep; a caller that spins for good never does.
#[test]
fn a_caller_that_waits_for_a_stopped_worker_sleeps_and_is_woken() {
    static SHARED: Mutex<Option<Arc<Shared>>> = Mutex::new(None);
    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    const SLOW: CpuFace = CpuFace {
        tiles: |_| 2,
        run: |_, _, _| {
            let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap();
            BEGUN.fetch_add(1, Ordering::SeqCst);
            wait_for("a second thread", || BEGUN.load(Ordering::SeqCst).is_multiple_of(2));
            let is_worker = thread::current().name().is_some_and(|n| n.starts_with("lily-cpu"));
            if is_worker {
                let expected = BEGUN.load(Ordering::SeqCst) / 2;
                wait_for("the caller's sleep", || shared.waits() == expected);
            }
        },
    };
    let mut pool = pool(2);
    *SHARED.lock().unwrap() = Some(pool.shared.clone());
    for launch in 1..=3 {
        pool.run(SLOW, &no_operands(), &mut Cost::default()).unwrap();
        assert_eq!(pool.shared.waits(), launch);
    }
}

#[test]
fn workers_without_work_sleep_and_all_of_them_come_back() {
    let mut pool = pool(9);
    for _ in 0..3 {
        wait_for("the sleep of all workers", || pool.shared.sleepers() == 8);
        let mut counts = vec![0; 400];
        run(&mut pool, &mut counts, -1).unwrap();
        assert_eq!(counts, [1; 400]);
    }
    /// Ends when nine threads are inside.
    const ALL: CpuFace = CpuFace {
        tiles: |_| 9,
        run: |_, _, _| {
            static BEGUN: AtomicUsize = AtomicUsize::new(0);
            BEGUN.fetch_add(1, Ordering::SeqCst);
            wait_for("the last of nine threads", || BEGUN.load(Ordering::SeqCst) >= 9);
        },
    };
    wait_for("the sleep of all workers", || pool.shared.sleepers() == 8);
    pool.run(ALL, &no_operands(), &mut Cost::default()).unwrap();
}

/// Whichever thread has tile 0 is stopped until the others have run all but what it holds.
#[test]
fn a_slow_core_holds_a_quarter_of_its_share_and_the_others_do_the_rest() {
    const TILES: usize = if cfg!(miri) { 64 } else { 256 };
    const HELD: usize = TILES / 2 / 4;
    static DONE: AtomicUsize = AtomicUsize::new(0);
    const STOPS: CpuFace = CpuFace {
        tiles: |_| TILES,
        run: |_, tile, _| {
            if tile == 0 {
                wait_for("the rest", || DONE.load(Ordering::SeqCst) >= TILES - HELD);
            }
            DONE.fetch_add(1, Ordering::SeqCst);
        },
    };
    pool(2).run(STOPS, &no_operands(), &mut Cost::default()).unwrap();
    assert_eq!(DONE.load(Ordering::SeqCst), TILES);
}

#[test]
fn short_launches_stay_with_the_caller() {
    const NAMED: CpuFace = CpuFace {
        tiles: |_| 8,
        run: |_, _, _| {
            let is_worker = thread::current().name().is_some_and(|n| n.starts_with("lily-cpu"));
            assert!(!is_worker, "a worker ran a launch of a few nanoseconds");
        },
    };
    let mut cheap = Cost::default();
    cheap.learn(1000, Duration::from_micros(10));
    let mut pool = pool(4);
    for _ in 0..100 {
        pool.run(NAMED, &no_operands(), &mut cheap.clone()).unwrap();
    }
}

#[test]
fn two_pools_work_side_by_side_and_an_idle_one_can_be_dropped() {
    thread::scope(|scope| {
        for threads in [3, 2] {
            scope.spawn(move || {
                let mut pool = pool(threads);
                for _ in 0..200 {
                    let mut counts = vec![0; 33];
                    run(&mut pool, &mut counts, -1).unwrap();
                    assert_eq!(counts, [1; 33]);
                }
            });
        }
    });
    for _ in 0..20 {
        drop(pool(4));
    }
    let idle = pool(4);
    thread::sleep(Duration::from_millis(2));
    drop(idle);
}

#[test]
fn shuffled_orders_are_permutations_that_a_seed_repeats() {
    let order = |seed| {
        let mut list: Vec<usize> = (0..50).collect();
        Shuffle::new(seed).shuffle(&mut list);
        list
    };
    assert_eq!(order(3), order(3));
    assert_ne!(order(3), order(4));
    let mut sorted = order(3);
    sorted.sort_unstable();
    assert!(sorted.into_iter().eq(0..50));
}

/// Some microseconds of arithmetic.
const WORK: CpuFace = CpuFace {
    tiles: |_| 64,
    run: |_, tile, _| {
        let mut x = tile as u64;
        for _ in 0..2000 {
            x = std::hint::black_box(x.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 1);
        }
    },
};

/// Seconds of some launches.
fn seconds(pool: &mut Pool, launches: usize) -> f64 {
    let mut cost = Cost::default();
    let start = Instant::now();
    for _ in 0..launches {
        pool.run(WORK, &no_operands(), &mut cost).unwrap();
    }
    start.elapsed().as_secs_f64()
}

/// Other programs that want every processor take a share of it, as from any program; what must not
/// happen is that launches wait for one another's lost processors. A single thread under the same load
/// is the measure: its own share is what it gets.
#[test]
#[ignore = "measures time; `scripts/check-full busy` runs it"]
fn a_busy_machine_leaves_the_pool_its_share() {
    let cores = Cores::here();
    let threads = cores.threads();
    let stop = AtomicUsize::new(0);
    let ratio = thread::scope(|scope| {
        for _ in 0..2 * threads {
            scope.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    std::hint::spin_loop();
                }
            });
        }
        let (mut one, mut all) = (Pool::new(&cores, 1, None), Pool::new(&cores, threads, None));
        let mut ratios: Vec<f64> =
            (0..7).map(|_| seconds(&mut all, 1000) / seconds(&mut one, 1000)).collect();
        stop.store(1, Ordering::Relaxed);
        ratios.sort_by(f64::total_cmp);
        ratios[3]
    });
    println!("{threads} threads take {ratio:.2} of the time of one on a busy machine");
    assert!(ratio < 3.0, "{ratio}");
}
