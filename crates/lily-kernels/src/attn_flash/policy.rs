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
