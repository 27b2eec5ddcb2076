//! `attn_prepare` as the prologue of `attn_split`: one launch less for each attention layer.
//!
//! Each threadgroup prepares the queries of its group again (8 heads of 256 and 32 angles at the real
//! size). The one whose block holds the new position also prepares that key and value, uses them and
//! stores them in the cache; no other threadgroup reads that row. Queries, key and value are rounded
//! as `attn_prepare` would, so the results are the same bits. Formulas: see [`crate::attn_prepare`]
//! and [`crate::attn_split`].
//! Mapping: as `attn_split`.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::attention::{self, PreparedArgs, PreparedBuffers};
use crate::cpu::CpuFace;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "attn_split_prepare",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// The step, decode.
        pub step: StepArgs,
        /// The prologue.
        pub prepared: PreparedArgs,
        /// Most blocks of this plan.
        pub splits: u32,
        /// Blocks from one head to the next in the partial results.
        pub part_stride: u32,
    }
}

impl Args {
    /// Index of a block of a query head in the partial results.
    fn part_at(&self, row: usize, head: usize, block: usize) -> usize {
        (row * self.prepared.q_heads as usize + head) * self.part_stride as usize + block
    }
}

/// Indices of the bindings behind those of the prologue.
mod bind {
    use crate::attention::prepared::bind;

    pub const CONTROL: usize = bind::CONTROL;
    pub const K: usize = bind::K;
    pub const PART_O: usize = bind::END;
    pub const PART_ML: usize = bind::END + 1;
}

/// Buffers of a launch.
pub struct Buffers {
    /// Projections, norms and cache.
    pub prepared: PreparedBuffers,
    /// Unnormalised outputs, f32 `[batch, q_heads, session splits, head_dim]`.
    pub part_o: BufferId,
    /// Maximum and sum, f32 `[batch, q_heads, session splits, 2]`.
    pub part_ml: BufferId,
}

/// Records the launch of a decode step.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args = Args {
        step: cx.step_args(),
        prepared: PreparedArgs::new(cx),
        splits: cx.splits as u32,
        part_stride: cx.session.splits as u32,
    };
    let mut bindings = buffers.prepared.bindings(cx);
    bindings.push(Binding::write("part_o", buffers.part_o, attention::parts(cx)));
    bindings.push(Binding::write("part_ml", buffers.part_ml, attention::parts(cx)));
    let flops = 4 * shape.q_width() as u64;
    Launch::new(
        KERNEL.name,
        cx.layer,
        args,
        bindings,
        [cx.splits as u32, shape.kv_heads as u32, cx.step.rows() as u32],
        128,
        move |live| flops * live.lengths().iter().sum::<usize>() as u64,
    )
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let prepared = launch.args::<Args>().prepared;
    let entry = prepared.constants(launch.entry("attn_split_prepare"))?;
    let heads = [prepared.rotary.head_dim, prepared.q_heads, prepared.kv_heads];
    attention::packed_entry(heads, launch, entry, include_str!("hopper.cu"))
}
