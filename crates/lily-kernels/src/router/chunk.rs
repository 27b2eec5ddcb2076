//! GPU face of the prefill form, `chunk.metal`.

use super::{Args, bind};
use crate::gpu::tiles::Product;
use crate::gpu::{Entry, GpuLaunch, Unsupported};

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
    let grid = [outputs.div_ceil(OUTPUT_TILE), a.step.rows.div_ceil(TILE_ROWS), 1];
    Ok(entry
        .from_text("chunk.metal", include_str!("chunk.metal"))
        .constant("TILE_ROWS", TILE_ROWS)
        .over(grid, 128))
}
