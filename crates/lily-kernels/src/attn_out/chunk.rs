//! GPU face of the prefill form, `chunk.metal`.

use super::{Args, bind};
use crate::gpu::tiles::{Product, TILE_COLUMNS};
use crate::gpu::{Entry, GpuLaunch, Unsupported};

/// The entry of a prefill launch.
pub(super) fn chunk_entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    let (k, outputs) = (a.q_width, a.residual.hidden);
    let product = Product { weight: bind::WEIGHT, k, outputs, experts: 1 };
    if a.residual.ss_columns == TILE_COLUMNS {
        let hopper = include_str!("hopper.cu");
        let entry =
            product.residual_by_warpgroups(launch, "attn_out_chunk", hopper, a.step.rows)?;
        if let Some(entry) = entry {
            return Ok(entry);
        }
    }
    let entry = product.chunk(launch, "attn_out_chunk", a.step.rows)?;
    Ok(entry.from_text("chunk.metal", include_str!("chunk.metal")))
}
