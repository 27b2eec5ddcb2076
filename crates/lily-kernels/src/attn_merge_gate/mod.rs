//! Joins the blocks of decode attention and applies the gate:
//! `att = σ(gate) ∘ Σ e^{m_s−m} o_s / Σ e^{m_s−m} l_s`.
//!
//! Blocks in order, only those in use: the others hold stale memory, possibly NaN, and are not even
//! multiplied by zero. All f32; the result is rounded to act.
//! Mapping: a threadgroup owns 64 elements of one head, since many blocks are megabytes.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::attention::{self, blocks};
use crate::cpu::CpuFace;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "attn_merge_gate",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// The step.
        pub step: StepArgs,
        /// Query heads.
        pub q_heads: u32,
        /// Width of a head.
        pub head_dim: u32,
        /// Most blocks of this plan.
        pub splits: u32,
        /// Blocks from one head to the next in the partial results.
        pub part_stride: u32,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const PART_O: usize = 1;
    pub const PART_ML: usize = 2;
    pub const GATE: usize = 3;
    pub const ATT: usize = 4;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// Unnormalised outputs, f32 `[batch, q_heads, session splits, head_dim]`.
    pub part_o: BufferId,
    /// Maximum and sum, f32 `[batch, q_heads, session splits, 2]`.
    pub part_ml: BufferId,
    /// act `[rows, q_heads, head_dim]`.
    pub gate: BufferId,
    /// act `[rows, q_width]`.
    pub att: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args = Args {
        step: cx.step_args(),
        q_heads: shape.q_heads as u32,
        head_dim: shape.head_dim as u32,
        splits: cx.splits as u32,
        part_stride: cx.session.splits as u32,
    };
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("part_o", buffers.part_o, attention::parts(cx)),
        Binding::read("part_ml", buffers.part_ml, attention::parts(cx)),
        Binding::read("gate", buffers.gate, access::rows(cx)),
        Binding::write("att", buffers.att, access::rows(cx)),
    ];
    let (flops, splits) = (4 * shape.q_width(), cx.splits);
    Launch::new(
        KERNEL.name,
        cx.layer,
        args,
        bindings,
        [shape.q_heads as u32, shape.head_dim.div_ceil(64) as u32, cx.step.rows() as u32],
        64,
        move |live| {
            let used: usize = live.lengths().into_iter().map(|n| blocks(n, splits)).sum();
            (flops * used) as u64
        },
    )
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let entry =
        attention::head_constants(launch.args::<Args>().head_dim, launch.entry("attn_merge_gate"))?;
    // Four times the declared threads: slots of 16 lanes share the blocks.
    Ok(entry.over(launch.grid, 256))
}
