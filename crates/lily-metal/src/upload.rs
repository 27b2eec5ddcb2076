//! Weights into device memory, in the kernels' layout, by several threads; memory is shared with the GPU, so
//! there is no second copy.

use std::thread;

use lily_kernels::gpu::MatrixFormat;
use lily_plan::WeightMatrix;

/// Packs a matrix into its place, rows dealt out to `threads` threads.
pub(crate) fn matrix(matrix: &WeightMatrix, format: MatrixFormat, to: &mut [u8], threads: usize) {
    let layout = format.layout(matrix);
    let (codes, pairs) = to.split_at_mut(layout.rows * layout.code_bytes);
    let share = layout.rows.div_ceil(threads).max(1);
    // Plain matrices have no pairs: then every part's is empty.
    let pairs = pairs.chunks_mut((share * layout.pair_bytes).max(1));
    let pairs = pairs.map(Some).chain(std::iter::repeat_with(|| None));
    let firsts = (0..layout.rows).step_by(share);
    thread::scope(|scope| {
        for ((first, codes), pairs) in
            firsts.zip(codes.chunks_mut(share * layout.code_bytes)).zip(pairs)
        {
            let rows = first..(first + share).min(layout.rows);
            scope.spawn(move || format.pack(matrix, rows, codes, pairs.unwrap_or_default()));
        }
    });
}
