//! Decode attention over blocks of keys: for each block `o = Σ e^{s−m} v`, its maximum m and sum l.
//!
//! The keys of a sequence are cut into at most `splits` blocks of a multiple of 32 keys (see
//! [`block_keys`](crate::attention::block_keys)), so that few KV heads still fill a device. Scores
//! `q · k / sqrt(head_dim)`, exponentials and sums are f32. Blocks beyond the length are not
//! written.
//! Mapping: a threadgroup owns one block of one KV head; all query heads of the group are packed, so
//! each key and value is read once. GPUs pack at most eight: larger groups take several threadgroups.

#[allow(unsafe_code)]
mod cpu;
pub(crate) mod policy;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::attention;
use crate::cpu::CpuFace;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "attn_split",
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
        /// Key and value heads.
        pub kv_heads: u32,
        /// Width of a head.
        pub head_dim: u32,
        /// Positions of the KV cache.
        pub capacity: u32,
        /// Most blocks of this plan.
        pub splits: u32,
        /// Blocks from one head to the next in the partial results.
        pub part_stride: u32,
    }
}

impl Args {
    /// Query heads that share a KV head.
    fn group(&self) -> usize {
        (self.q_heads / self.kv_heads) as usize
    }

    /// First element of a KV head in the cache.
    fn cache_at(&self, sequence: usize, head: usize) -> usize {
        (sequence * self.kv_heads as usize + head) * (self.capacity * self.head_dim) as usize
    }

    /// Index of a block of a query head in the partial results.
    fn part_at(&self, row: usize, head: usize, block: usize) -> usize {
        (row * self.q_heads as usize + head) * self.part_stride as usize + block
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const Q: usize = 1;
    pub const K: usize = 2;
    pub const V: usize = 3;
    pub const PART_O: usize = 4;
    pub const PART_ML: usize = 5;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// act `[rows, q_heads, head_dim]`.
    pub q: BufferId,
    /// kv `[batch, kv_heads, capacity, head_dim]`.
    pub k: BufferId,
    /// kv `[batch, kv_heads, capacity, head_dim]`.
    pub v: BufferId,
    /// Unnormalised outputs, f32 `[batch, q_heads, session splits, head_dim]`.
    pub part_o: BufferId,
    /// Maximum and sum, f32 `[batch, q_heads, session splits, 2]`.
    pub part_ml: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args = Args {
        step: cx.step_args(),
        q_heads: shape.q_heads as u32,
        kv_heads: shape.kv_heads as u32,
        head_dim: shape.head_dim as u32,
        capacity: cx.session.capacity as u32,
        splits: cx.splits as u32,
        part_stride: cx.session.splits as u32,
    };
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("q", buffers.q, access::rows(cx)),
        Binding::read("k", buffers.k, attention::keys(cx)),
        Binding::read("v", buffers.v, attention::keys(cx)),
        Binding::write("part_o", buffers.part_o, attention::parts(cx)),
        Binding::write("part_ml", buffers.part_ml, attention::parts(cx)),
    ];
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
    let a: Args = launch.args();
    let entry = attention::head_constants(a.head_dim, launch.entry("attn_split"))?;
    attention::packed_entry(
        [a.head_dim, a.q_heads, a.kv_heads],
        launch,
        entry,
        include_str!("hopper.cu"),
    )
}
