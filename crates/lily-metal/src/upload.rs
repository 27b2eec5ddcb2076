//! Weights into device memory, in the kernels' layout, by several threads.
//!
//! Memory is shared with the GPU, so what is packed is where it stays. What is read of the files goes past the page
//! cache, in parts of a few megabytes: weights are never in memory twice.

use std::sync::{Mutex, PoisonError};
use std::thread;

use lily_kernels::gpu::MatrixFormat;
use lily_kernels::gpu::stored::{Unreadable, WeightFiles, excerpt, parts};
use lily_plan::WeightMatrix;

/// Bytes of weights that a thread packs at once, about.
const PART_BYTES: usize = 4 << 20;

/// Packs a matrix into its place. Threads take parts of its rows in turn.
///
/// # Errors
/// A file cannot be read.
pub fn matrix(
    matrix: &WeightMatrix,
    format: MatrixFormat,
    files: &WeightFiles,
    to: &mut [u8],
    threads: usize,
) -> Result<(), Unreadable> {
    let layout = format.layout(matrix);
    let (mut codes, mut pairs) = to.split_at_mut(layout.rows * layout.code_bytes);
    let mut places = Vec::new();
    for part in parts(matrix, layout, PART_BYTES) {
        let own_codes;
        (own_codes, codes) = codes.split_at_mut(part.rows.len() * layout.code_bytes);
        let own_pairs;
        (own_pairs, pairs) = pairs.split_at_mut(part.rows.len() * layout.pair_bytes);
        places.push((part, own_codes, own_pairs));
    }
    let workers = threads.min(places.len());
    let places = Mutex::new(places.into_iter());
    let work = || loop {
        let place = places.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((part, codes, pairs)) = place else { return Ok(()) };
        let count = part.rows.len();
        let read = excerpt(matrix, part.expert, part.rows, files)?;
        format.pack(&read, 0..count, codes, pairs);
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..workers).map(|_| scope.spawn(work)).collect();
        let joined =
            others.into_iter().map(|t| t.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        std::iter::once(work()).chain(joined.collect::<Vec<_>>()).collect()
    })
}

#[cfg(test)]
mod tests {
    use lily_kernels::gpu::stored::example::{matrix_in, noise};

    use super::*;

    #[test]
    fn packed_parts_are_the_packed_matrix_for_any_threads_and_any_cut() {
        let matrix = matrix_in(&noise());
        for format in [MatrixFormat::Q4, MatrixFormat::Q8, MatrixFormat::Bf16] {
            let whole = format.pack_all(&matrix);
            for threads in [1, 2, 7] {
                let mut packed = vec![0; whole.len()];
                let files = WeightFiles::default();
                super::matrix(&matrix, format, &files, &mut packed, threads).expect("it is mapped");
                assert_eq!(packed, whole);
            }
        }
    }
}
