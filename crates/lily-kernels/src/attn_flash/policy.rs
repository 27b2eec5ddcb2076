//! Tile heights.

use crate::gpu::{Family, Target};

/// Matrices of 8 rows that a simdgroup owns; a tile has four times as many rows. Two fill the 16 rows of
/// NVIDIA's product and take most of its registers; with one the outputs take 64 registers of a lane.
pub(super) fn row_tiles(target: &Target) -> u32 {
    match target.family {
        Family::Nvidia { .. } => 2,
        Family::Apple | Family::Test => 1,
    }
}

/// Blocks of a cluster that part the keys of the same pairs on compute capability 9.0: what 128
/// multiprocessors have room for, a power of two up to the 8 of a portable cluster. `blocks` is their
/// number without.
pub(super) fn hopper_splits(blocks: u32) -> u32 {
    1 << (128 / blocks.max(1)).clamp(1, 8).ilog2()
}
