//! Products of stored matrix rows and prepared inputs.
//!
//! Quantised rows times 8-bit inputs are integer products by group:
//! `sum over groups g of scale_g * d_g * (codes_g · inputs_g) + bias_g * sum_g`, where `d_g` is the
//! inputs' scale and `sum_g` the sum of their rounded values. Everything else is widened to f32.
//! The order of summation of one result depends on `k` alone: not on how many inputs or rows are
//! multiplied together, so prefill and decode give the same bits.

mod inputs;
mod packed;
mod plain;
#[cfg(test)]
mod tests;

use std::ops::Range;

use lily_plan::{RowFormat, WeightMatrix};

use super::Simd;
use super::simd::ROWS;
use packed::{MOST_TOKENS, Rows, Sums};

pub use inputs::{Inputs, Wanted};

/// Products of `rows` of an expert's part of a matrix with the inputs of `tokens`, `[tokens, rows]`:
/// the results of one input side by side. They lie in `space`.
///
/// # Panics
/// If the rows are not in the matrix, the matrix is not as long as the inputs, or the inputs are not
/// there in the form that it takes.
pub fn multiply<'s>(
    simd: Simd,
    matrix: &WeightMatrix,
    (expert, rows): (usize, Range<usize>),
    inputs: &Inputs,
    tokens: Range<usize>,
    space: &'s mut Vec<f32>,
) -> &'s [f32] {
    assert!(tokens.end <= inputs.tokens(), "inputs {tokens:?} of {}", inputs.tokens());
    assert_eq!(matrix.k(), inputs.k(), "values of a row");
    assert!(expert < matrix.experts() && rows.end <= matrix.rows(), "{rows:?} of {expert}");
    let width = rows.len();
    space.resize(tokens.len() * width, 0.0);
    let mut sums: Sums = [[0.0; ROWS]; MOST_TOKENS];
    let panel_at = |first: usize, end: usize| {
        let first = first.min(end.saturating_sub(1));
        Panel::new(matrix, expert, first..end.min(first + ROWS))
    };
    let mut panel = panel_at(rows.start, rows.end);
    for first in rows.clone().step_by(ROWS) {
        let last = first + ROWS >= rows.end;
        // The next tile of this thread is likely to begin where this one ends.
        let next = panel_at(first + ROWS, if last { matrix.rows() } else { rows.end });
        for start in tokens.clone().step_by(MOST_TOKENS) {
            let some = (start, MOST_TOKENS.min(tokens.end - start));
            let at = (start - tokens.start) * width + first - rows.start;
            panel.multiply(simd, &next, inputs, some, &mut sums, (&mut space[at..], width));
        }
        panel = next;
    }
    space
}

/// At most sixteen rows of a matrix.
struct Panel<'a> {
    matrix: &'a WeightMatrix,
    expert: usize,
    rows: Range<usize>,
    /// Where they begin; past the last one it again.
    places: Rows<'a>,
    /// The format of all rows, if they have the same.
    format: Option<RowFormat>,
}

impl<'a> Panel<'a> {
    fn new(matrix: &'a WeightMatrix, expert: usize, rows: Range<usize>) -> Self {
        let (places, format) = Rows::of(matrix, expert, rows.clone());
        Self { matrix, expert, rows, places, format }
    }

    /// `out[t * width + r]` for every row and `n` inputs from `first`.
    fn multiply(
        &self,
        simd: Simd,
        next: &Self,
        inputs: &Inputs,
        (first, n): (usize, usize),
        sums: &mut Sums,
        (out, width): (&mut [f32], usize),
    ) {
        let rows = self.rows.len();
        if let (Some(format), true) = (self.format, inputs.has_codes())
            && format.is_quantised()
        {
            self.places.multiply(simd, format, &next.places, inputs, (first, n), sums);
            for (t, sums) in sums[..n].iter().enumerate() {
                out[t * width..t * width + rows].copy_from_slice(&sums[..rows]);
            }
            return;
        }
        for (r, row) in self.rows.clone().enumerate() {
            let row = self.matrix.row(self.expert, row);
            if row.format.is_quantised() && inputs.has_codes() {
                // A neighbour has another format.
                let places = Rows::all(row, inputs.k());
                places.multiply(simd, row.format, &places, inputs, (first, n), sums);
                for (t, sums) in sums[..n].iter().enumerate() {
                    out[t * width + r] = sums[0];
                }
            } else {
                plain::multiply(simd, &row, inputs, (first, n), (&mut out[r..], width));
            }
        }
    }
}
