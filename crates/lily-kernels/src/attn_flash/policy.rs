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

/// Blocks of a cluster that part the keys of the same pairs on compute capability 9.0, up to the 8 of a
/// portable cluster, when there are `blocks` without. The multiprocessors come in groups of at least 16,
/// seven of them or more, and a cluster lies within one: so many clusters run at once that no block waits
/// for a second round.
pub(super) fn hopper_splits(blocks: u32) -> u32 {
    match blocks {
        0..=14 => 8,
        15..=21 => 5,
        22..=35 => 3,
        36..=64 => 2,
        _ => 1,
    }
}
