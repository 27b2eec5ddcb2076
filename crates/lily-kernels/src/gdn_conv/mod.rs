//! Convolution, norms and gates of a prefill chunk of a Gated DeltaNet layer.
//!
//! For every token: `c = silu(Σ_j w[j] qkv[t - (conv_width-1) + j])`; the query is divided by its
//! length and `sqrt(k_dim)`, the key by its length; `beta = sigmoid(b)`,
//! `log alpha = -exp(A_log) softplus(a + dt_bias)`. Queries, keys and values are stored as act.
//!
//! Columns before the chunk come from the convolution ring; columns before position 0 are zero and
//! not read. The ring is not written here: a new column can fall into the slot of an old one that
//! another threadgroup still reads. One threadgroup: 32 tokens of a query and key head, or of value
//! heads.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::cpu::CpuFace;
use crate::gdn::{self, GdnArgs};
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "gdn_conv",
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
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const QKV: usize = 1;
    pub const CONV: usize = 2;
    pub const BA: usize = 3;
    pub const CONV1D: usize = 4;
    pub const A_LOG: usize = 5;
    pub const DT_BIAS: usize = 6;
    pub const GQ: usize = 7;
    pub const GK: usize = 8;
    pub const GV: usize = 9;
    pub const BETA: usize = 10;
    pub const LOG_DECAY: usize = 11;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// Inputs of the convolution, f32 `[rows, conv_channels]`.
    pub qkv: BufferId,
    /// Convolution ring, f32 `[batch, conv_slots, conv_channels]`.
    pub conv: BufferId,
    /// f32 `[rows, 2 v_heads]`: b, then a.
    pub ba: BufferId,
    /// Taps, `[conv_channels, conv_width]`, the oldest first.
    pub conv1d: BufferId,
    /// `[v_heads]`.
    pub a_log: BufferId,
    /// `[v_heads]`.
    pub dt_bias: BufferId,
    /// Queries, act `[rows, k_heads, k_dim]`.
    pub gq: BufferId,
    /// Keys, act `[rows, k_heads, k_dim]`.
    pub gk: BufferId,
    /// Values, act `[rows, v_heads, v_dim]`.
    pub gv: BufferId,
    /// f32 `[rows, v_heads]`.
    pub beta: BufferId,
    /// f32 `[rows, v_heads]`.
    pub log_decay: BufferId,
}

/// Records the launch; prefill only.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args = Args { step: cx.step_args(), gdn: GdnArgs::new(cx) };
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("qkv", buffers.qkv, access::rows(cx)),
        Binding::read("conv", buffers.conv, gdn::old_columns(cx)),
        Binding::read("ba", buffers.ba, access::rows(cx)),
        Binding::read("conv1d", buffers.conv1d, access::whole()),
        Binding::read("a_log", buffers.a_log, access::whole()),
        Binding::read("dt_bias", buffers.dt_bias, access::whole()),
        Binding::write("gq", buffers.gq, access::rows(cx)),
        Binding::write("gk", buffers.gk, access::rows(cx)),
        Binding::write("gv", buffers.gv, access::rows(cx)),
        Binding::write("beta", buffers.beta, access::rows(cx)),
        Binding::write("log_decay", buffers.log_decay, access::rows(cx)),
    ];
    let heads = shape.k_heads + shape.v_heads.div_ceil(2);
    let flops = 12 * shape.conv_channels() as u64;
    Launch::new(
        KERNEL.name,
        cx.layer,
        args,
        bindings,
        [heads as u32, cx.step.rows().div_ceil(32) as u32, 1],
        256,
        move |live| flops * live.rows().len() as u64,
    )
}

/// Query, key and value heads, and tokens, of a block of `hopper.cu`; in the text too.
const HOPPER_TILE: [u32; 2] = [4, 16];

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let args: Args = launch.args();
    let gdn = &args.gdn;
    if gdn.is_hopper(launch.target) && gdn.conv_width == 4 {
        let heads = 2 * gdn.k_heads + gdn.v_heads;
        let grid = [heads.div_ceil(HOPPER_TILE[0]), args.step.rows.div_ceil(HOPPER_TILE[1]), 1];
        let entry = launch.entry("gdn_conv").from_text("hopper.cu", include_str!("hopper.cu"));
        return Ok(gdn.constants(entry)?.over(grid, 32 * HOPPER_TILE[0]));
    }
    // A thread for each channel of a query and its key, or of two values.
    let threads = (2 * args.gdn.k_dim.max(args.gdn.v_dim)).next_multiple_of(32);
    let entry = launch.entry("gdn_conv").constant("THREADS", threads);
    Ok(args.gdn.constants(entry)?.over(launch.grid, threads))
}
