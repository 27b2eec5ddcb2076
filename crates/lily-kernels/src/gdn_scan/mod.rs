//! The delta rule token by token over a short prefill chunk of a Gated DeltaNet layer.
//!
//! For every token and value head: `S ← alpha S; r = beta (v - S k); S ← S + r kᵀ; core = S q`. The
//! state before the chunk is read from its ring slot (not at position 0, where it is zero), the one
//! after it written to its own, which may be the same: a threadgroup owns 16 value rows of a head
//! in all slots. A chunk that may be taken back to any of its tokens (fewer tokens than state slots)
//! leaves the state after every token.
//!
//! It also copies the last `conv_width - 1` columns of the chunk into the convolution ring, or all
//! of a chunk that may be taken back: `gdn_conv` has read the old ones.

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
    name: "gdn_scan",
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
        /// 1: the state after every token is stored, 0: only the last.
        pub every_token: u32,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const GQ: usize = 1;
    pub const GK: usize = 2;
    pub const GV: usize = 3;
    pub const BETA: usize = 4;
    pub const LOG_DECAY: usize = 5;
    pub const QKV: usize = 6;
    pub const STATE: usize = 7;
    pub const CORE: usize = 8;
    pub const CONV: usize = 9;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
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
        every_token: u32::from(gdn::keeps_every_token(cx)),
    };
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("gq", buffers.gq, access::rows(cx)),
        Binding::read("gk", buffers.gk, access::rows(cx)),
        Binding::read("gv", buffers.gv, access::rows(cx)),
        Binding::read("beta", buffers.beta, access::rows(cx)),
        Binding::read("log_decay", buffers.log_decay, access::rows(cx)),
        Binding::read("qkv", buffers.qkv, gdn::kept_rows(cx)),
        Binding::owned("state", buffers.state, gdn::old_state(cx), gdn::new_state(cx)),
        Binding::write("core", buffers.core, access::rows(cx)),
        Binding::write("conv", buffers.conv, gdn::new_columns(cx)),
    ];
    let flops = gdn::step_flops(cx);
    Launch::new(
        KERNEL.name,
        cx.layer,
        args,
        bindings,
        [shape.o_ss_slices() as u32, shape.v_heads as u32, 1],
        128,
        move |live| flops * live.rows().len() as u64,
    )
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let args: Args = launch.args();
    args.gdn.constants(launch.entry("gdn_scan"))
}
