//! The chunked delta rule from chunk to chunk over a prefill chunk of a Gated DeltaNet layer.
//!
//! With U, W, G and P of `gdn_chunk_prepare`, for every chunk of `C` tokens in turn:
//!
//! ```text
//! R = U - W Sᵀ      core = e^G Q Sᵀ + P R      S ← e^(G_C) S + (e^(G_C - G) R)ᵀ K
//! ```
//!
//! All f32. The state before the chunk is read from its ring slot (not at position 0, where it is
//! zero), the one after it written to its own, which may be the same: a threadgroup owns 32 value rows of
//! a head in all slots. P is lower triangular; what is above its diagonal is zero, or skipped.
//!
//! It also copies the last `conv_width - 1` columns into the convolution ring: `gdn_conv` has read the
//! old ones.

#[allow(unsafe_code)]
mod cpu;
mod policy;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::cpu::CpuFace;
use crate::gdn::{self, GdnArgs};
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::shape::{CHUNK, LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "gdn_chunk_scan",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// The step.
        pub step: StepArgs,
        /// Dimensions.
        pub gdn: GdnArgs,
        /// Most columns that enter the convolution ring.
        pub kept_columns: u32,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const GQ: usize = 1;
    pub const GK: usize = 2;
    pub const CHUNK_U: usize = 3;
    pub const CHUNK_W: usize = 4;
    pub const CHUNK_G: usize = 5;
    pub const CHUNK_P: usize = 6;
    pub const QKV: usize = 7;
    pub const STATE: usize = 8;
    pub const CORE: usize = 9;
    pub const CONV: usize = 10;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// Queries, act `[rows, k_heads, k_dim]`.
    pub gq: BufferId,
    /// Keys, act `[rows, k_heads, k_dim]`.
    pub gk: BufferId,
    /// U, chunk `[rows, v_heads, v_dim]`.
    pub chunk_u: BufferId,
    /// W, chunk `[rows, v_heads, k_dim]`.
    pub chunk_w: BufferId,
    /// G, f32 `[rows, v_heads]`.
    pub chunk_g: BufferId,
    /// P, chunk `[rows, v_heads, 64]`.
    pub chunk_p: BufferId,
    /// Inputs of the convolution, f32 `[rows, conv_channels]`.
    pub qkv: BufferId,
    /// State ring, f32 `[batch, state_slots, v_heads, v_dim, k_dim]`.
    pub state: BufferId,
    /// Core output, f32 `[rows, v_heads, v_dim]`.
    pub core: BufferId,
    /// Convolution ring, f32 `[batch, conv_slots, conv_channels]`.
    pub conv: BufferId,
}

/// Records the launch; prefill only.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args = Args {
        step: cx.step_args(),
        gdn: GdnArgs::new(cx),
        kept_columns: gdn::kept_columns(cx) as u32,
    };
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("gq", buffers.gq, access::rows(cx)),
        Binding::read("gk", buffers.gk, access::rows(cx)),
        Binding::read("chunk_u", buffers.chunk_u, access::rows(cx)),
        Binding::read("chunk_w", buffers.chunk_w, access::rows(cx)),
        Binding::read("chunk_g", buffers.chunk_g, access::rows(cx)),
        Binding::read("chunk_p", buffers.chunk_p, gdn::chunk_squares(cx)),
        Binding::read("qkv", buffers.qkv, gdn::kept_rows(cx)),
        Binding::owned("state", buffers.state, gdn::old_state(cx), gdn::new_state(cx)),
        Binding::write("core", buffers.core, access::rows(cx)),
        Binding::write("conv", buffers.conv, gdn::new_columns(cx)),
    ];
    let macs = 3 * shape.v_dim * shape.k_dim + CHUNK * shape.v_dim;
    let flops = (2 * shape.v_heads * macs) as u64;
    Launch::new(
        KERNEL.name,
        cx.layer,
        args,
        bindings,
        [shape.v_dim.div_ceil(32) as u32, shape.v_heads as u32, 1],
        128,
        move |live| flops * live.rows().len() as u64,
    )
}

/// Bytes of shared memory of `hopper.cu`, which checks it.
const SHARED_BYTES: u32 = 225_984;

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let args: Args = launch.args();
    let entry = launch.entry("gdn_chunk_scan");
    let (entry, hopper) = args.gdn.chunk_constants(launch.target, entry)?;
    if !hopper {
        return Ok(entry.constant("AHEAD", policy::ahead(launch.target)));
    }
    let grid = launch.grid;
    Ok(entry
        .constant("SHARED_MEMORY", SHARED_BYTES)
        .from_text("hopper.cu", include_str!("hopper.cu"))
        .over(grid, 256)
        .shared(SHARED_BYTES))
}
