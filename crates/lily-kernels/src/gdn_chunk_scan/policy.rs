//! How far ahead device memory is read, by device.

use crate::gpu::{Family, Target};

/// Strips that a simdgroup reads ahead: 1, 2 or 4. NVIDIA GPUs have the registers for more, and the
/// longer latency.
pub(super) fn ahead(target: Target) -> u32 {
    match target.family {
        Family::Nvidia { .. } => 4,
        Family::Apple | Family::Test => 2,
    }
}
