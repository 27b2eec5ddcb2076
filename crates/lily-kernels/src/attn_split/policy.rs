//! Threads of a block of keys.

use crate::gpu::{Family, Target};

/// Threads of a threadgroup. A lane holds eight heads of 256 elements in about 240 registers. NVIDIA's
/// multiprocessors have them for 8 simdgroups, and at 8 to 64 splits there are fewer threadgroups than
/// multiprocessors; Apple's cores keep several threadgroups of 4.
pub(crate) fn threads(target: &Target) -> u32 {
    match target.family {
        Family::Nvidia { .. } => 256,
        Family::Apple | Family::Test => 128,
    }
}
