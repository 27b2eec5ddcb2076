//! GPU face of the prefill form: `chunk.metal`, and `hopper.cu` for 8-bit matrices on compute capability 9.0.

use super::{Args, bind};
use crate::gpu::tiles::Product;
use crate::gpu::{Entry, Family, GpuLaunch, MatrixFormat, Unsupported};

/// Tokens of a threadgroup.
const TILE_ROWS: u32 = 32;
/// Matrix rows of a threadgroup; in the text too.
const OUTPUT_TILE: u32 = 64;

/// The entry of a prefill launch.
pub(super) fn chunk_entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    let outputs = a.experts + 1;
    let product = Product { weight: bind::WEIGHT, k: a.norm.hidden, outputs, experts: 1 };
    let entry = product.matrix(launch, launch.entry("router_chunk"))?;
    let hopper = launch.target.family == Family::Nvidia { capability: 90 };
    if hopper && launch.format(bind::WEIGHT)? == MatrixFormat::Q8 {
        return Ok(Hopper::of(&a).entry(entry, &a));
    }
    let grid = [outputs.div_ceil(OUTPUT_TILE), a.step.rows.div_ceil(TILE_ROWS), 1];
    Ok(entry
        .from_text("chunk.metal", include_str!("chunk.metal"))
        .constant("TILE_ROWS", TILE_ROWS)
        .over(grid, 128))
}

/// Warps of a block of `hopper.cu`.
struct Hopper {
    /// Beside each other along the tokens, 16 of them each.
    rows: u32,
    /// Along the columns of the matrix, of which each set has as many groups.
    columns: u32,
}

impl Hopper {
    /// Matrix rows of a block; in the text too.
    const OUTPUTS: u32 = 72;

    /// As many blocks as fill the chip; a short chunk has them from fewer tokens a block, and shares out the columns.
    fn of(a: &Args) -> Self {
        let groups = a.norm.hidden / 64;
        let (rows, most) = if a.step.rows > 1024 { (4, 2) } else { (1, 8) };
        let columns = [8, 4, 2, 1].into_iter().find(|&n| n <= most && groups.is_multiple_of(n));
        Self { rows, columns: columns.unwrap_or(1) }
    }

    /// Bytes of shared memory: two tiles of codes for each set, scales and biases, the norm, 1 / rms; the parts of the
    /// sums use them again.
    fn shared(&self, hidden: u32) -> u32 {
        let tile = 2 * (Self::OUTPUTS * 64 + 16);
        let operands = self.columns * 2 * tile + hidden / 64 * Self::OUTPUTS * 4 + hidden * 4;
        let parts = self.rows * self.columns * 16 * (Self::OUTPUTS + 4) * 4;
        (operands + 64 * self.rows).max(parts)
    }

    fn entry(&self, entry: Entry, a: &Args) -> Entry {
        let shared = self.shared(a.norm.hidden);
        let grid =
            [(a.experts + 1).div_ceil(Self::OUTPUTS), a.step.rows.div_ceil(16 * self.rows), 1];
        entry
            .from_text("hopper.cu", include_str!("hopper.cu"))
            .constant("ROW_WARPS", self.rows)
            .constant("COLUMN_WARPS", self.columns)
            .constant("SHARED_MEMORY", shared)
            .over(grid, 32 * self.rows * self.columns)
            .shared(shared)
    }
}
