//! Launches that multiply blocks of matrix rows with blocks of inputs.

use std::ops::Range;

use lily_plan::WeightMatrix;

use super::{Inputs, Simd, part, product_rows};
use crate::shape::LiveRows;

/// Most inputs of one tile; they stay in the second-level cache.
pub const TILE_TOKENS: usize = 32;

/// Matrix rows multiplied together: they and a few inputs share the first-level cache.
const BLOCK_ROWS: usize = 8;

/// Products of `rows` of an expert's part of a matrix with all inputs, `[tokens, rows]`: the results
/// of one input side by side. They lie in `space`.
///
/// # Panics
/// As [`product_rows`](super::product_rows), and if there are more than [`TILE_TOKENS`] inputs.
pub fn multiply<'s>(
    simd: Simd,
    matrix: &WeightMatrix,
    expert: usize,
    rows: Range<usize>,
    inputs: &Inputs,
    space: &'s mut Vec<f32>,
) -> &'s [f32] {
    let (tokens, width) = (inputs.tokens(), rows.len());
    space.resize(tokens * width, 0.0);
    let mut out = [0.0; BLOCK_ROWS * TILE_TOKENS];
    for first in rows.clone().step_by(BLOCK_ROWS) {
        // A last, shorter block names its last row several times and multiplies it once.
        let n = BLOCK_ROWS.min(rows.end - first);
        let block: [_; BLOCK_ROWS] =
            std::array::from_fn(|i| matrix.row(expert, first + i.min(n - 1)));
        let out = &mut out[..n * tokens];
        product_rows(simd, &block[..n], inputs, out);
        for (i, out) in out.chunks_exact(tokens).enumerate() {
            let column = space[first - rows.start + i..].iter_mut().step_by(width);
            column.zip(out).for_each(|(to, from)| *to = *from);
        }
    }
    space
}

/// The tiles of a launch that multiplies every live input with every matrix row.
pub struct ProductTiles<'a> {
    /// Rows of the inputs.
    pub live: LiveRows<'a>,
    /// Rows of the matrix.
    pub rows: usize,
    /// Matrix rows of one tile.
    pub tile_rows: usize,
}

impl<'a> ProductTiles<'a> {
    /// Number of tiles; 0 if no row lives.
    pub fn count(&self) -> usize {
        self.live.len().div_ceil(TILE_TOKENS) * self.rows.div_ceil(self.tile_rows)
    }

    /// Input rows and matrix rows of a tile. Tiles of the same inputs follow one another.
    pub fn nth(&self, tile: usize) -> (LiveRows<'a>, Range<usize>) {
        let row_tiles = self.rows.div_ceil(self.tile_rows);
        let tokens = self.live.part(TILE_TOKENS, tile / row_tiles);
        (tokens, part(self.rows, self.tile_rows, tile % row_tiles))
    }
}

#[cfg(test)]
mod tests {
    use lily_plan::{RowFormat, RowSegment};

    use super::*;
    use crate::cpu::{Numerics, product};
    use crate::shape::StepArgs;

    /// Two experts of 19 rows of 5 values.
    fn matrix() -> WeightMatrix {
        let values = (0..2 * 19 * 5).flat_map(|i| (i as f32 * 0.37).sin().to_le_bytes());
        let segment = RowSegment {
            tensor: "test".into(),
            format: RowFormat::F32,
            experts: 0..2,
            first_row: 0,
            row_step: 1,
            rows: 19,
            source_row: 0,
            expert_stride: 19,
            codes: values.collect::<Vec<u8>>().into(),
            scales: Default::default(),
            biases: Default::default(),
        };
        WeightMatrix::new(2, 19, 5, vec![segment]).unwrap()
    }

    #[test]
    fn rows_are_multiplied_as_one_by_one() {
        let (matrix, simd) = (matrix(), Simd::detect());
        let mut inputs = Inputs::default();
        let mut space = vec![f32::NAN; 1000];
        let most = if cfg!(miri) { 5 } else { TILE_TOKENS };
        for tokens in [1, 3, most] {
            inputs.clear(Numerics::Exact, 5);
            (0..tokens).for_each(|t| inputs.push(&[t as f32, 1.0, -2.0, 0.5, 3.0], 0.5));
            for rows in [0..19, 3..4, 2..18, 11..11] {
                let got = multiply(simd, &matrix, 1, rows.clone(), &inputs, &mut space).to_vec();
                let mut want = vec![0.0; tokens * rows.len()];
                let mut one = vec![0.0; tokens];
                for (i, row) in rows.clone().enumerate() {
                    product(simd, matrix.row(1, row), &inputs, &mut one);
                    one.iter().enumerate().for_each(|(t, v)| want[t * rows.len() + i] = *v);
                }
                assert_eq!(got, want, "{tokens} tokens, rows {rows:?}");
            }
        }
    }

    #[test]
    fn tiles_cover_every_pair_of_rows_once() {
        use lily_plan::control::{COUNT, WORDS};
        for (count, rows, tile_rows) in [(0, 5, 2), (1, 7, 7), (32, 9, 4), (70, 3, 8)] {
            let mut control = [0; WORDS];
            control[COUNT] = count;
            let step = StepArgs { prefill: 1, rows: 100, sequence: 0 };
            let tiles = ProductTiles { live: step.live_rows(&control), rows, tile_rows };
            let mut seen = vec![0; count as usize * rows];
            for tile in 0..tiles.count() {
                let (tokens, range) = tiles.nth(tile);
                assert!(!tokens.is_empty() && !range.is_empty());
                tokens.iter().for_each(|t| range.clone().for_each(|r| seen[t * rows + r] += 1));
            }
            assert!(seen.iter().all(|&n| n == 1), "{count} inputs, {rows} rows of {tile_rows}");
        }
    }
}
