//! Norm and rotary of queries and keys: `q = rotary(rms(aq) ∘ q_norm)`, likewise k; v as projected.
//!
//! The norm runs over a head; rotary turns its first `rotary_dim` elements by the position's angles
//! (pairs `i`, `i + rotary_dim / 2`). Everything is f32 up to one rounding: q to act, keys and values
//! to the cache's element type. They go to the cache rows of their positions.
//! Mapping: a simdgroup owns one head of one token, a threadgroup four.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::attention::{self, RotaryArgs};
use crate::cpu::CpuFace;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "attn_prepare",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// The step.
        pub step: StepArgs,
        /// Norm and rotary.
        pub rotary: RotaryArgs,
        /// Query heads.
        pub q_heads: u32,
        /// Key and value heads.
        pub kv_heads: u32,
        /// Positions of the KV cache.
        pub capacity: u32,
    }
}

impl Args {
    /// First element of a cache row.
    fn cache_at(&self, sequence: usize, head: usize, position: usize) -> usize {
        let head = sequence * self.kv_heads as usize + head;
        (head * self.capacity as usize + position) * self.rotary.head_dim as usize
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const AQ: usize = 1;
    pub const AK: usize = 2;
    pub const AV: usize = 3;
    pub const Q_NORM: usize = 4;
    pub const K_NORM: usize = 5;
    pub const Q: usize = 6;
    pub const K: usize = 7;
    pub const V: usize = 8;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// f32 `[rows, q_heads, head_dim]`.
    pub aq: BufferId,
    /// f32 `[rows, kv_heads, head_dim]`.
    pub ak: BufferId,
    /// f32 `[rows, kv_heads, head_dim]`.
    pub av: BufferId,
    /// `[head_dim]`.
    pub q_norm: BufferId,
    /// `[head_dim]`.
    pub k_norm: BufferId,
    /// act `[rows, q_heads, head_dim]`.
    pub q: BufferId,
    /// kv `[batch, kv_heads, capacity, head_dim]`.
    pub k: BufferId,
    /// kv `[batch, kv_heads, capacity, head_dim]`.
    pub v: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args = Args {
        step: cx.step_args(),
        rotary: RotaryArgs::new(cx),
        q_heads: shape.q_heads as u32,
        kv_heads: shape.kv_heads as u32,
        capacity: cx.session.capacity as u32,
    };
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("aq", buffers.aq, access::rows(cx)),
        Binding::read("ak", buffers.ak, access::rows(cx)),
        Binding::read("av", buffers.av, access::rows(cx)),
        Binding::read("q_norm", buffers.q_norm, access::whole()),
        Binding::read("k_norm", buffers.k_norm, access::whole()),
        Binding::write("q", buffers.q, access::rows(cx)),
        Binding::write("k", buffers.k, attention::new_keys(cx)),
        Binding::write("v", buffers.v, attention::new_keys(cx)),
    ];
    let heads = shape.q_heads + 2 * shape.kv_heads;
    let flops = (8 * heads * shape.head_dim) as u64;
    Launch::new(
        KERNEL.name,
        cx.layer,
        args,
        bindings,
        [heads.div_ceil(4) as u32, cx.step.rows() as u32, 1],
        128,
        move |live| flops * live.rows().len() as u64,
    )
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    launch.args::<Args>().rotary.constants(launch.entry("attn_prepare"))
}
