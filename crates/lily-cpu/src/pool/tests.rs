use lily_kernels::cpu::{Numerics, Operand, SharedSlice, Simd};

use super::*;

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
    pool.run(COUNT, &launch)
}

#[test]
fn every_tile_runs_once_in_a_thousand_launches_of_any_size() {
    let (launches, spread) = if cfg!(miri) { (20, 5) } else { (1000, 70) };
    for threads in 1..=8 {
        for shuffle in [None, Some(Shuffle::new(7))] {
            let mut pool = Pool::new(threads, shuffle);
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
    let mut pool = Pool::new(4, None);
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
        let mut pool = Pool::new(threads, None);
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
            let start = Instant::now();
            while BEGUN.load(Ordering::SeqCst) < 2 {
                assert!(start.elapsed() < Duration::from_secs(20), "only one thread took part");
                thread::yield_now();
            }
        },
    };
    let launch = CpuLaunch {
        args: &[],
        operands: &[],
        numerics: Numerics::Exact,
        simd: Simd::detect(),
        stamp: 0,
    };
    Pool::new(2, None).run(MEET, &launch).unwrap();
}

#[test]
fn two_pools_work_side_by_side_and_an_idle_one_can_be_dropped() {
    thread::scope(|scope| {
        for threads in [3, 2] {
            scope.spawn(move || {
                let mut pool = Pool::new(threads, None);
                for _ in 0..200 {
                    let mut counts = vec![0; 33];
                    run(&mut pool, &mut counts, -1).unwrap();
                    assert_eq!(counts, [1; 33]);
                }
            });
        }
    });
    for _ in 0..20 {
        drop(Pool::new(4, None));
    }
    let idle = Pool::new(4, None);
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
