//! A small matrix out of several tensors, for tests of what reads and packs weights.

use std::ops::Range;

use bytes::Bytes;
use lily_plan::{GROUP, RowFormat, RowSegment, WeightMatrix};

/// A matrix of 3 experts: 6 interleaved rows of two tensors for the first two, another tensor's for the last; with
/// the bytes that its tensors are slices of.
///
/// # Panics
/// If the bytes are fewer than [`noise`] gives.
pub fn matrix_in(bytes: &Bytes) -> WeightMatrix {
    let (k, format) = (2 * GROUP, RowFormat::Q4);
    let (codes, scales) = (format.code_bytes(k), format.scale_bytes(k));
    let mut at = 0;
    let mut take = |n: usize| {
        at += n;
        bytes.slice(at - n..at)
    };
    let mut segment = |experts: Range<usize>, first_row, row_step, rows, source_row| {
        let expert_stride = rows + 1;
        let stored = source_row + experts.len() * expert_stride;
        RowSegment {
            tensor: "t".into(),
            format,
            experts,
            first_row,
            row_step,
            rows,
            source_row,
            expert_stride,
            codes: take(stored * codes),
            scales: take(stored * scales),
            biases: take(stored * scales),
        }
    };
    let segments =
        vec![segment(0..2, 0, 2, 3, 1), segment(0..2, 1, 2, 3, 0), segment(2..3, 0, 1, 6, 2)];
    WeightMatrix::new(3, 6, k, segments).expect("a whole matrix")
}

/// Bytes enough for it, small enough to be finite as scales.
pub fn noise() -> Bytes {
    (0..16_384u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3f).collect()
}
