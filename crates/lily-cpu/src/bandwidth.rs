//! How fast this machine reads its memory.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use lily_plan::on_threads;

/// Bytes that are read: more than caches hold.
const READ_BYTES: u64 = 256 << 20;

/// Bytes read in a second by all threads together: the best of some passes over memory that no cache
/// holds, or over a quarter of what is left. `None` if the system does not give it.
pub(crate) fn read_bandwidth(threads: usize) -> Option<f64> {
    let bytes = lily_plan::host_memory().map_or(READ_BYTES, |limit| READ_BYTES.min(limit / 4));
    let count = (bytes / 8).max(1) as usize;
    let mut words = Vec::new();
    words.try_reserve_exact(count).ok()?;
    words.resize(count, 1u64);
    let sum =
        |part: &[u64]| black_box(part.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)));
    let pass = || {
        let start = Instant::now();
        let (parts, next) = (words.chunks(words.len().div_ceil(threads)), AtomicUsize::new(0));
        on_threads(threads, || {
            while let Some(part) = parts.clone().nth(next.fetch_add(1, Ordering::Relaxed)) {
                sum(part);
            }
        });
        size_of_val(&words[..]) as f64 / start.elapsed().as_secs_f64()
    };
    Some((0..5).map(|_| pass()).fold(0.0, f64::max))
}
