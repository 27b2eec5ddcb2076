//! Launches that multiply blocks of matrix rows with blocks of inputs.

use std::ops::Range;

use super::part;
use crate::shape::LiveRows;

/// Most inputs of one tile; they stay in the second-level cache.
pub const TILE_TOKENS: usize = 32;

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
    use super::*;
    use crate::shape::StepArgs;

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
