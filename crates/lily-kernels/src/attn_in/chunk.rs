//! GPU face of the prefill form, `chunk.metal`.

use super::{Args, bind};
use crate::gpu::tiles::Product;
use crate::gpu::{Entry, GpuLaunch, Unsupported};

/// The entry of a prefill launch.
pub(super) fn chunk_entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    let (q_width, kv_width) = (a.q_heads * a.head_dim, a.kv_heads * a.head_dim);
    let outputs = 2 * q_width + 2 * kv_width;
    let product = Product { weight: bind::WEIGHT, k: a.norm.hidden, outputs, experts: 1 };
    let hopper = include_str!("hopper.cu");
    let entry = match product.chunk_by_warpgroups(launch, "attn_in_chunk", hopper, a.step.rows)? {
        Some(entry) => entry.constant("SS_TILES", a.norm.ss_tiles),
        None => product
            .chunk(launch, "attn_in_chunk", a.step.rows)?
            .from_text("chunk.metal", include_str!("chunk.metal")),
    };
    Ok(entry
        .constant("HEAD_DIM", a.head_dim)
        .constant("Q_WIDTH", q_width)
        .constant("KV_WIDTH", kv_width))
}
