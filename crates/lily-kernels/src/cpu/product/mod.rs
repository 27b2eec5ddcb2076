//! Products of stored matrix rows and prepared inputs.
//!
//! Quantised rows times 8-bit inputs are integer products by group:
//! `sum over groups g of scale_g * d_g * (codes_g · inputs_g) + bias_g * sum_g`, where `d_g` is the
//! inputs' scale and `sum_g` the sum of their rounded values. Everything else is widened to f32.
//! The order of summation of one result depends on `k` alone: not on how many inputs or rows are
//! multiplied together, so prefill and decode give the same bits.

mod ahead;
mod inputs;
mod packed;
mod plain;
#[cfg(test)]
mod tests;

use std::ops::Range;

use lily_plan::{RowRef, WeightMatrix};

use super::Simd;
use super::simd::ROWS;
use ahead::Course;
use packed::{MOST_TOKENS, Rows};

pub use ahead::Block;
pub use inputs::{Inputs, Wanted};

/// Products of the rows of a block with the inputs of `tokens`, `[tokens, rows]`: the results of one
/// input side by side. They lie in `space`.
///
/// # Panics
/// If the rows are not in the matrix, the matrix is not as long as the inputs, or the inputs are not
/// there in the form that it takes.
pub fn multiply<'s>(
    simd: Simd,
    matrix: &WeightMatrix,
    block: impl Into<Block>,
    inputs: &Inputs,
    tokens: Range<usize>,
    space: &'s mut Vec<f32>,
) -> &'s [f32] {
    let block = block.into();
    let (expert, rows) = (block.expert, block.rows.clone());
    assert!(tokens.end <= inputs.tokens(), "inputs {tokens:?} of {}", inputs.tokens());
    assert_eq!(matrix.k(), inputs.k(), "values of a row");
    assert!(expert < matrix.experts() && rows.end <= matrix.rows(), "{rows:?} of {expert}");
    let width = rows.len();
    space.resize(tokens.len() * width, 0.0);
    let course = Course::new(matrix, &block);
    let mut run = Rows::nowhere(matrix.k());
    let mut first = rows.start;
    while first < rows.end {
        // Of more inputs than are multiplied at once, all meet a sixteen before the next one is read.
        let most = if tokens.len() > MOST_TOKENS { ROWS } else { width };
        run.find(matrix, expert, first..rows.end.min(first + most));
        let place = (first - rows.start).div_ceil(ROWS);
        for start in tokens.clone().step_by(MOST_TOKENS) {
            let some = (start, MOST_TOKENS.min(tokens.end - start));
            let out = &mut space[(start - tokens.start) * width + first - rows.start..];
            match run.format() {
                Some(format) if format.is_quantised() && inputs.has_codes() => {
                    run.multiply(simd, (&course, place), inputs, some, (out, width));
                }
                _ => {
                    for r in 0..run.len() {
                        let row = matrix.row(expert, first + r);
                        multiply_row(simd, row, inputs, some, (&mut out[r..], width));
                    }
                }
            }
        }
        first += run.len();
    }
    space
}

/// `out[t * width]` for one row and `tokens` inputs from `first` on: a row of values, or one whose
/// neighbours have another format.
fn multiply_row(
    simd: Simd,
    row: RowRef<'_>,
    inputs: &Inputs,
    (first, tokens): (usize, usize),
    (out, width): (&mut [f32], usize),
) {
    if !(row.format.is_quantised() && inputs.has_codes()) {
        return plain::multiply(simd, &row, inputs, (first, tokens), (out, width));
    }
    let row = Rows::one(row, inputs.k());
    row.multiply(simd, (&Course::nowhere(inputs.k()), 0), inputs, (first, tokens), (out, width));
}
