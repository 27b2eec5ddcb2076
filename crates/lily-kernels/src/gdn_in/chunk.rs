//! GPU face of the prefill form, `chunk.metal`.

use super::{Args, bind};
use crate::gpu::tiles::Product;
use crate::gpu::{Entry, GpuLaunch, Unsupported};

/// The entry of a prefill launch.
pub(super) fn chunk_entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    let outputs = a.conv_channels + a.v_width + 2 * a.v_heads;
    let product = Product { weight: bind::WEIGHT, k: a.norm.hidden, outputs, experts: 1 };
    let hopper = include_str!("hopper.cu");
    let entry = match product.chunk_by_warpgroups(launch, "gdn_in_chunk", hopper, a.step.rows)? {
        Some(entry) => entry.constant("SS_TILES", a.norm.ss_tiles),
        None => product
            .chunk(launch, "gdn_in_chunk", a.step.rows)?
            .from_text("chunk.metal", include_str!("chunk.metal")),
    };
    Ok(entry
        .constant("CONV_CHANNELS", a.conv_channels)
        .constant("V_WIDTH", a.v_width)
        .constant("GATES", 2 * a.v_heads))
}
