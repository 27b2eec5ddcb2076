//! Router of an expert block: `logits = ((x ∘ post_norm) · Wᵀ) / rms(x)`, in f32 throughout.
//!
//! Row `experts` of the matrix is the gate of the shared expert. The input is the f32 residual, not
//! its copy `xn`, and it is never rounded to 8 bits: a different logit may choose a different expert.
//! Decode: a threadgroup owns 2 matrix rows, because the matrix is small and latency decides.
//! Prefill: 64 matrix rows and 32 tokens.

mod chunk;
#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch, Step};

use crate::access;
use crate::cpu::CpuFace;
use crate::gpu::gemv::{GEMV_ROWS, Gemv};
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::norm::NormArgs;
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "router",
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
        /// Routed experts; there is one row of the matrix more.
        pub experts: u32,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const X: usize = 1;
    pub const X_SS: usize = 2;
    pub const POST_NORM: usize = 3;
    pub const WEIGHT: usize = 4;
    pub const LOGITS: usize = 5;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// f32 `[rows, hidden]`.
    pub x: BufferId,
    /// f32 `[rows, hidden / 8]`.
    pub x_ss: BufferId,
    /// f32 `[hidden]`.
    pub post_norm: BufferId,
    /// matrix `[experts + 1, hidden]`.
    pub weight: BufferId,
    /// f32 `[rows, experts + 1]`.
    pub router_logits: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args =
        Args { step: cx.step_args(), norm: NormArgs::new(cx), experts: shape.experts as u32 };
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("x", buffers.x, access::rows(cx)),
        Binding::read("x_ss", buffers.x_ss, access::ss(cx)),
        Binding::read("post_norm", buffers.post_norm, access::whole()),
        Binding::read("weight", buffers.weight, access::whole()),
        Binding::write("router_logits", buffers.router_logits, access::rows(cx)),
    ];
    let rows = shape.experts + 1;
    let grid = match cx.step {
        Step::Decode { batch } => [rows.div_ceil(2) as u32, batch as u32, 1],
        Step::Prefill { tokens, .. } => [rows.div_ceil(64) as u32, tokens.div_ceil(32) as u32, 1],
    };
    let macs = (rows * shape.hidden) as u64;
    Launch::new(KERNEL.name, cx.layer, args, bindings, grid, cx.projection_threads(), move |live| {
        2 * macs * live.rows().len() as u64
    })
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    if a.step.is_prefill() && a.step.rows > GEMV_ROWS {
        return chunk::chunk_entry(launch);
    }
    let format = launch.format(bind::WEIGHT)?;
    let gemv = Gemv { format, k: a.norm.hidden, rows: a.experts + 1 };
    let tile = gemv.narrow(a.step.rows);
    let entry = gemv.constants(a.norm.constants(launch.entry("router")), tile);
    Ok(entry.over(gemv.grid(tile, a.step.rows), tile.threads()))
}
