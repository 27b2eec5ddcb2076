//! What lily chooses for a GPU: numbers only, to be tuned again when somebody measures.
//!
//! Nothing here has been measured on Apple hardware. Where two choices are legal and no figure decides, the
//! plainer one is taken.
//!
//! | choice | value | reason |
//! |---|---|---|
//! | matrix form | [`choose_products`](super::choose_products) | only M5 has units that are faster than the common form |
//! | rows of a dense tile | 64 where that leaves 160 threadgroups, else 32, and 16 for chunks of up to 16 rows (`lily-kernels`, `gpu/tiles.rs`) | a larger tile unpacks each weight for more rows; 160 is four for each of 40 cores |
//! | rows of an expert's tile | 16 where an expert has fewer than 8 rows on average (32 with tensor operations), 64 from 64 rows on, else 32 | a high tile unpacks a weight for more rows; in a low one, rows that nobody has cost less |
//! | operand stages of a tile | 1 | two save a barrier a step and take twice the threadgroup memory (27 KB for 32 rows), which limits how many threadgroups a core holds at once |
//! | threads of `attn_split` | 128 | a lane holds eight heads in about 240 registers: more threads would not be resident together on M1 and M2, whose registers are dealt out when a threadgroup starts |
//! | rows of an `attn_flash` tile | 8 for each simdgroup; 32 for all four together with tensor operations | outputs of 256 columns take 64 registers of a lane |
//! | threads of a product with one vector | 64 | small threadgroups spread evenly over 7 to 80 cores |
//! | fusions | none | each repeats work in every threadgroup to save a launch; on an NVIDIA GPU only `prepare` gained, half a percent |
//! | prefill chunk | 128 below 14 cores, 256 below 28, 512 below 56, 1,024 below 112, else 2,048; with tensor operations a core counts as three | the largest that is [one command buffer](crate::encoder::Estimate) at the begin of a prompt; larger ones share each expert's weights among more tokens, but are not predicted to be faster. Deep in a context the engine takes smaller ones |

use lily_kernels::gpu::{Family, Products, Target};
use lily_plan::Fusions;

use super::Gpu;

/// Choices for a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What kernels are chosen for.
    pub target: Target,
    /// Launches of a decode step that are merged with a neighbour.
    pub fusions: Fusions,
    /// Largest prefill chunk in tokens, a power of two.
    pub chunk: usize,
}

impl Policy {
    /// The choices for `gpu` with a form of products that the device has.
    pub fn new(gpu: &Gpu, products: Products) -> Self {
        let target = Target { family: Family::Apple, products };
        let cores = match products {
            Products::SimdgroupMatrix => gpu.cores,
            Products::TensorOperations => 3 * gpu.cores,
        };
        let chunk = match cores {
            0..14 => 128,
            14..28 => 256,
            28..56 => 512,
            56..112 => 1024,
            _ => 2048,
        };
        Self { target, fusions: Fusions::default(), chunk }
    }
}
