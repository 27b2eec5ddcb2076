//! Tiles of `prelude/gemv.h`: how the rows of a matrix, their weights and the tokens are dealt out.
//!
//! Every choice is legal for every shape; which one is fast depends on the device. The numbers for NVIDIA put
//! the whole matrix in flight at once where it is small, those for Apple keep the inputs of a lane for more rows.

use lily_plan::GROUP;

use super::{Entry, Family, MatrixFormat, Target};

/// Lanes of a simdgroup.
const LANES: u32 = 32;
/// Most rows of a prefill chunk that are multiplied as in decode: a matrix product would leave most of
/// its tile empty.
pub(crate) const GEMV_ROWS: u32 = 8;
/// Most tokens that share unpacked weights.
const MAX_TOKENS: u32 = 4;

/// A matrix as the core sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gemv {
    /// Device format.
    pub format: MatrixFormat,
    /// Weights of a row, a multiple of 64.
    pub k: u32,
    /// Rows, of all experts together.
    pub rows: u32,
}

/// A tile: constants of `gemv.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GemvTile {
    /// Rows that a lane works on together, a power of two.
    pub lane_rows: u32,
    /// Lanes that share a row, a power of two, at least `lane_rows`.
    pub row_lanes: u32,
    /// Simdgroups that share a row.
    pub splits: u32,
    /// Simdgroups of a threadgroup.
    pub simdgroups: u32,
    /// Rows of scratch that share unpacked weights.
    pub tokens: u32,
    /// Threadgroups that an NVIDIA multiprocessor has to hold at once; other devices do not use it.
    pub min_blocks: u32,
}

impl GemvTile {
    /// Rows of a simdgroup.
    pub fn simd_rows(&self) -> u32 {
        self.lane_rows * LANES / self.row_lanes
    }

    /// Matrix rows of a threadgroup.
    pub fn rows(&self) -> u32 {
        self.simd_rows() * self.simdgroups / self.splits
    }

    /// Threads of a threadgroup.
    pub fn threads(&self) -> u32 {
        self.simdgroups * LANES
    }
}

impl Gemv {
    /// 16-byte words of a row's codes.
    fn row_words(&self) -> u32 {
        self.k * self.format.bits() / 128
    }

    /// Steps of a whole simdgroup along a row.
    fn steps(&self) -> u32 {
        self.row_words().div_ceil(LANES)
    }

    /// For matrices with many rows: a simdgroup owns 4 whole rows. Threadgroups are small, so that the
    /// processors get equal shares.
    pub fn wide(&self, step_rows: u32) -> GemvTile {
        let tokens = tokens(step_rows);
        // One token: every threadgroup of the model's matrices resident at once.
        let min_blocks = if tokens == 1 { 12 } else { 8 };
        GemvTile { lane_rows: 4, row_lanes: LANES, splits: 1, simdgroups: 2, tokens, min_blocks }
    }

    /// For the LM head: a threadgroup owns the `head_rows` rows of one candidate.
    pub fn head(&self, head_rows: u32, step_rows: u32) -> GemvTile {
        let tokens = tokens(step_rows);
        // More tokens take more registers for each row.
        let lane_rows = if tokens == 1 { 8 } else { 4 };
        let simdgroups = head_rows / lane_rows;
        let min_blocks = 16 / simdgroups;
        GemvTile { lane_rows, row_lanes: LANES, splits: 1, simdgroups, tokens, min_blocks }
    }

    /// For few rows: a threadgroup owns 2, its simdgroups share them.
    pub fn narrow(&self, step_rows: u32) -> GemvTile {
        let splits = self.steps().min(4);
        let tokens = tokens(step_rows);
        let (simdgroups, min_blocks) = (splits, 1);
        GemvTile { lane_rows: 2, row_lanes: LANES, splits, simdgroups, tokens, min_blocks }
    }

    /// For the residual epilogue: a threadgroup owns `columns` rows, 8 or 64, and has a simdgroup for
    /// each token.
    pub fn residual(&self, target: Target, columns: u32, step_rows: u32) -> GemvTile {
        let splits = if columns > 8 { 1 } else { self.steps().min(4) };
        let few = columns <= 8 && (is_nvidia(target) || splits < 2);
        let lane_rows = if few { 2 } else { 4 };
        let simdgroups = columns / lane_rows * splits;
        // 8-bit codes for 4 tokens take more than the 128 registers that each of 512 threads has.
        let crowded = is_nvidia(target) && columns > 8 && self.format == MatrixFormat::Q8;
        let tokens = tokens(step_rows).min(if crowded { 2 } else { MAX_TOKENS });
        let min_blocks = if tokens == 1 && columns <= 8 { 2 } else { 1 };
        GemvTile { lane_rows, row_lanes: LANES, splits, simdgroups, tokens, min_blocks }
    }

    /// For an expert's short rows: a simdgroup owns 8 rows at once, all weights of a slot in flight.
    pub fn short(&self, slots: u32) -> GemvTile {
        let row_lanes = self.row_words().next_power_of_two().clamp(4, LANES);
        let simdgroups = slots.min(16);
        let lane_rows = row_lanes / 4;
        GemvTile { lane_rows, row_lanes, splits: 1, simdgroups, tokens: 1, min_blocks: 2 }
    }

    /// Adds the constants of `affine.h` alone.
    pub fn matrix(&self, entry: Entry) -> Entry {
        debug_assert!(self.k.is_multiple_of(GROUP as u32), "a plan refuses other matrices");
        entry
            .constant("BITS", self.format.bits())
            .constant("MATRIX_K", self.k)
            .constant("MATRIX_ROWS", self.rows)
    }

    /// Adds the constants of `gemv.h`, and the threads.
    pub fn constants(&self, entry: Entry, tile: GemvTile) -> Entry {
        let threads = tile.threads();
        let grid = entry.grid;
        self.matrix(entry)
            .constant("LANE_ROWS", tile.lane_rows)
            .constant("ROW_LANES", tile.row_lanes)
            .constant("SPLITS", tile.splits)
            .constant("SIMDGROUPS", tile.simdgroups)
            .constant("TOKENS", tile.tokens)
            .constant("THREADS", threads)
            .constant("MIN_BLOCKS", tile.min_blocks)
            .over(grid, threads)
    }

    /// Threadgroups along the matrix rows and along the rows of scratch.
    pub fn grid(&self, tile: GemvTile, step_rows: u32) -> [u32; 3] {
        [self.rows.div_ceil(tile.rows()), step_rows.div_ceil(tile.tokens), 1]
    }
}

/// Rows of scratch of a tile.
fn tokens(step_rows: u32) -> u32 {
    step_rows.next_power_of_two().min(MAX_TOKENS)
}

fn is_nvidia(target: Target) -> bool {
    matches!(target.family, Family::Nvidia { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Products;

    fn targets() -> [Target; 2] {
        let family = Family::Nvidia { capability: 90 };
        [Target::TEST, Target { family, products: Products::SimdgroupMatrix }]
    }

    #[test]
    fn every_tile_is_whole_and_has_a_simdgroup_for_each_token_it_ends() {
        for format in [MatrixFormat::Q4, MatrixFormat::Q8, MatrixFormat::Bf16] {
            for k in [64, 128, 192, 512, 2048, 4096] {
                let gemv = Gemv { format, k, rows: 300 };
                let mut tiles = Vec::new();
                for step_rows in 1..9 {
                    tiles.push(gemv.wide(step_rows));
                    for target in targets() {
                        for columns in [8, 64] {
                            let tile = gemv.residual(target, columns, step_rows);
                            assert_eq!(tile.rows(), columns);
                            assert!(tile.simdgroups >= tile.tokens, "{tile:?}");
                            tiles.push(tile);
                        }
                    }
                    for rows in [32, 64] {
                        let tile = gemv.head(rows, step_rows);
                        assert_eq!(tile.rows(), rows);
                        assert!(tile.simdgroups >= tile.tokens, "{tile:?}");
                        tiles.push(tile);
                    }
                    tiles.push(gemv.narrow(step_rows));
                }
                for slots in [2, 9, 32] {
                    let tile = gemv.short(slots);
                    assert_eq!(tile.simd_rows(), 8);
                    tiles.push(tile);
                }
                for tile in tiles {
                    assert!(tile.row_lanes >= tile.lane_rows && tile.row_lanes <= LANES);
                    assert!(tile.lane_rows.is_power_of_two() && tile.row_lanes.is_power_of_two());
                    assert!(tile.simdgroups.is_multiple_of(tile.splits), "{tile:?}");
                    assert!(tile.threads() <= 1024, "{tile:?}");
                    // A multiprocessor holds 2048 threads and has 64 registers for each of 1024.
                    assert!(tile.min_blocks >= 1 && tile.min_blocks * tile.threads() <= 1024);
                }
            }
        }
    }
}
