//! Threads of a block of keys.

use crate::gpu::{Family, Target};

/// Threads of a threadgroup. On compute capability 9.0 a warp's ring of tiles takes 25 KB of shared memory, and two
/// threadgroups of 4 warps fill a multiprocessor. In the common text a lane holds eight heads of 256 elements in about
/// 240 registers. NVIDIA's multiprocessors have them for 8 simdgroups, and there are fewer threadgroups than
/// multiprocessors; Apple's cores keep several threadgroups of 4.
pub(crate) fn threads(target: &Target) -> u32 {
    match target.family {
        Family::Nvidia { capability: 90 } => 128,
        Family::Nvidia { .. } => 256,
        Family::Apple | Family::Test => 128,
    }
}
