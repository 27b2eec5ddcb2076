//! How fast this machine reads its memory.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

/// Bytes that are read: more than caches hold.
const READ_BYTES: u64 = 256 << 20;

/// Bytes read in a second by all threads together: the best of some passes over memory that no cache
/// holds, or over a quarter of what is left.
pub(crate) fn read_bandwidth(threads: usize) -> f64 {
    let bytes = lily_plan::host_memory().map_or(READ_BYTES, |limit| READ_BYTES.min(limit / 4));
    let words = vec![1u64; (bytes / 8).max(1) as usize];
    let sum =
        |part: &[u64]| black_box(part.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)));
    let pass = || {
        let start = Instant::now();
        thread::scope(|scope| {
            for part in words.chunks(words.len().div_ceil(threads)) {
                scope.spawn(move || sum(part));
            }
        });
        size_of_val(&words[..]) as f64 / start.elapsed().as_secs_f64()
    };
    (0..5).map(|_| pass()).fold(0.0, f64::max)
}
