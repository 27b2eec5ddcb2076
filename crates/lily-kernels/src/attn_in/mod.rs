//! Input projection of an attention layer: `y = (xn · Wᵀ) / rms(x)`.
//!
//! The rows of the merged matrix are, for each query head, `head_dim` query rows and `head_dim` gate
//! rows; then all keys, then all values. Queries, keys and values leave in f32 because they are
//! normalised next; the gate is rounded to act. The norm's weight is already in `xn`; `x_ss` gives
//! its scale. Decode is a GEMV with 8 matrix rows for each threadgroup, prefill a GEMM.

mod chunk;
#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::cpu::CpuFace;
use crate::gpu::gemv::{GEMV_ROWS, Gemv};
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::norm::NormArgs;
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "attn_in",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// The step.
        pub step: StepArgs,
        /// The input's norm.
        pub norm: NormArgs,
        /// Query heads.
        pub q_heads: u32,
        /// Key and value heads.
        pub kv_heads: u32,
        /// Width of a head.
        pub head_dim: u32,
    }
}

impl Args {
    /// Binding and element of the output of a matrix row for a row of scratch.
    fn place(&self, out: usize, row: usize) -> (usize, usize) {
        let head_dim = self.head_dim as usize;
        let (q_width, kv_width) =
            (self.q_heads as usize * head_dim, self.kv_heads as usize * head_dim);
        if out < 2 * q_width {
            let (head, i) = (out / (2 * head_dim), out % (2 * head_dim));
            let base = row * q_width + head * head_dim;
            return if i < head_dim {
                (bind::AQ, base + i)
            } else {
                (bind::GATE, base + i - head_dim)
            };
        }
        let i = out - 2 * q_width;
        let base = row * kv_width;
        if i < kv_width { (bind::AK, base + i) } else { (bind::AV, base + i - kv_width) }
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const XN: usize = 1;
    pub const X_SS: usize = 2;
    pub const WEIGHT: usize = 3;
    pub const AQ: usize = 4;
    pub const GATE: usize = 5;
    pub const AK: usize = 6;
    pub const AV: usize = 7;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// act `[rows, hidden]`.
    pub xn: BufferId,
    /// f32 `[rows, hidden / 8]`.
    pub x_ss: BufferId,
    /// matrix `[attn_rows, hidden]`.
    pub weight: BufferId,
    /// f32 `[rows, q_heads, head_dim]`.
    pub aq: BufferId,
    /// act `[rows, q_heads, head_dim]`.
    pub gate: BufferId,
    /// f32 `[rows, kv_heads, head_dim]`.
    pub ak: BufferId,
    /// f32 `[rows, kv_heads, head_dim]`.
    pub av: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args = Args {
        step: cx.step_args(),
        norm: NormArgs::new(cx),
        q_heads: shape.q_heads as u32,
        kv_heads: shape.kv_heads as u32,
        head_dim: shape.head_dim as u32,
    };
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("xn", buffers.xn, access::rows(cx)),
        Binding::read("x_ss", buffers.x_ss, access::ss(cx)),
        Binding::read("weight", buffers.weight, access::whole()),
        Binding::write("aq", buffers.aq, access::rows(cx)),
        Binding::write("gate", buffers.gate, access::rows(cx)),
        Binding::write("ak", buffers.ak, access::rows(cx)),
        Binding::write("av", buffers.av, access::rows(cx)),
    ];
    let macs = (shape.attn_rows() * shape.hidden) as u64;
    Launch::new(
        KERNEL.name,
        cx.layer,
        args,
        bindings,
        cx.projection_grid(shape.attn_rows(), 128),
        cx.projection_threads(),
        move |live| 2 * macs * live.rows().len() as u64,
    )
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    if a.step.is_prefill() && a.step.rows > GEMV_ROWS {
        return chunk::chunk_entry(launch);
    }
    let rows = 2 * (a.q_heads + a.kv_heads) * a.head_dim;
    let gemv = Gemv { format: launch.format(bind::WEIGHT)?, k: a.norm.hidden, rows };
    let tile = gemv.wide(a.step.rows);
    let entry = gemv
        .constants(a.norm.constants(launch.entry("attn_in")), tile)
        .constant("HEAD_DIM", a.head_dim);
    Ok(entry.over(gemv.grid(tile, a.step.rows), tile.threads()))
}
