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

use std::mem;
use std::ops::Range;

use lily_plan::{RowRef, WeightMatrix};

use super::Simd;
use super::simd::ROWS;
use ahead::{Ahead, Course};
use packed::{Factors, MOST_TOKENS, Rows, Sums};

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
    // A decode step has one token: clearing the sums of many takes as long as multiplying short rows.
    let (mut one, mut many);
    let sums: &mut [Sums] = match tokens.len() {
        1 => {
            one = [[0.0; ROWS]];
            &mut one
        }
        _ => {
            many = [[0.0; ROWS]; MOST_TOKENS];
            &mut many
        }
    };
    let mut factors = Factors::default();
    let mut course = Course::new(matrix, &block);
    let (mut these, mut those) = (Rows::nowhere(matrix.k()), Rows::nowhere(matrix.k()));
    let (mut here, mut next) = (&mut these, &mut those);
    let sixteen = |first: usize| first.min(rows.end)..rows.end.min(first + ROWS);
    here.find(matrix, expert, sixteen(rows.start));
    for (n, first) in rows.clone().step_by(ROWS).enumerate() {
        let following = sixteen(first + ROWS);
        let has_next = !following.is_empty();
        if has_next {
            next.find(matrix, expert, following);
        }
        let ahead = course.ahead(n, here, has_next.then_some(&*next));
        for start in tokens.clone().step_by(MOST_TOKENS) {
            let sums = &mut sums[..MOST_TOKENS.min(tokens.end - start)];
            let out = &mut space[(start - tokens.start) * width + first - rows.start..];
            let count = ROWS.min(rows.end - first);
            match here.format() {
                Some(format) if format.is_quantised() && inputs.has_codes() => {
                    here.multiply(simd, ahead.clone(), inputs, start, (&mut factors, sums));
                    for (t, sums) in sums.iter().enumerate() {
                        out[t * width..t * width + count].copy_from_slice(&sums[..count]);
                    }
                }
                _ => {
                    for r in 0..count {
                        let row = matrix.row(expert, first + r);
                        let space = (&mut factors, &mut *sums);
                        multiply_row(simd, row, inputs, start, space, (&mut out[r..], width));
                    }
                }
            }
        }
        mem::swap(&mut here, &mut next);
    }
    space
}

/// `out[t * width]` for one row and as many inputs from `first` on as there are `sums`: a row of values,
/// or one whose neighbours have another format.
fn multiply_row(
    simd: Simd,
    row: RowRef<'_>,
    inputs: &Inputs,
    first: usize,
    (factors, sums): (&mut Factors, &mut [Sums]),
    (out, width): (&mut [f32], usize),
) {
    if !(row.format.is_quantised() && inputs.has_codes()) {
        return plain::multiply(simd, &row, inputs, (first, sums.len()), (out, width));
    }
    let rows = Rows::all(row, inputs.k());
    let ahead = Ahead::new(&rows, (0, 0));
    rows.multiply(simd, ahead, inputs, first, (factors, sums));
    for (t, sums) in sums.iter().enumerate() {
        out[t * width] = sums[0];
    }
}
