//! Causal attention of a prefill chunk over the cache, with the gate:
//! `att = σ(gate) ∘ softmax(q · Kᵀ / sqrt(head_dim)) · V`.
//!
//! Token t of the chunk sees the keys of all positions up to its own. Online softmax in f32; devices
//! that multiply in bfloat16 round the unnormalised probabilities to act. The result is rounded to
//! act.
//! Mapping: a threadgroup owns 32 or 64 (token, query head) pairs of one KV head, by device, so short
//! chunks fill tiles and keys are shared. The grid is declared for 64. `tensors.metal` is the form for
//! devices with tensor operations, `hopper.cu` that for NVIDIA's compute capability 9.0.

#[allow(unsafe_code)]
mod cpu;
mod policy;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::attention;
use crate::cpu::CpuFace;
use crate::gpu::{Entry, Family, GpuFace, GpuLaunch, MslStruct, Products, Unsupported, msl_struct};
use crate::shape::{LaunchContext, ModelShape, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "attn_flash",
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
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const Q: usize = 1;
    pub const GATE: usize = 2;
    pub const K: usize = 3;
    pub const V: usize = 4;
    pub const ATT: usize = 5;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// act `[rows, q_heads, head_dim]`.
    pub q: BufferId,
    /// act `[rows, q_heads, head_dim]`.
    pub gate: BufferId,
    /// kv `[batch, kv_heads, capacity, head_dim]`.
    pub k: BufferId,
    /// kv `[batch, kv_heads, capacity, head_dim]`.
    pub v: BufferId,
    /// act `[rows, q_width]`.
    pub att: BufferId,
}

/// Arithmetic operations of a token for each key that it sees: a product with the key, and one with the value.
fn flops_per_key(shape: &ModelShape) -> u64 {
    4 * shape.q_width() as u64
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
    };
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("q", buffers.q, access::rows(cx)),
        Binding::read("gate", buffers.gate, access::rows(cx)),
        Binding::read("k", buffers.k, attention::keys(cx)),
        Binding::read("v", buffers.v, attention::keys(cx)),
        Binding::write("att", buffers.att, access::rows(cx)),
    ];
    let flops = flops_per_key(shape);
    let tiles = (cx.step.rows() * shape.group()).div_ceil(64);
    Launch::new(
        KERNEL.name,
        cx.layer,
        args,
        bindings,
        [shape.kv_heads as u32, tiles as u32, 1],
        128,
        move |live| flops * live.lengths().iter().sum::<usize>() as u64,
    )
}

/// Whether the form with tensor operations takes heads of this width: whole slices of 64 columns. The
/// other form takes the others, on a device that has both.
fn tensors_support(head_dim: u32) -> bool {
    head_dim.is_multiple_of(64)
}

/// The form for compute capability 9.0 and heads of 256: blocks of 128 pairs, of two warpgroups that
/// multiply and one that copies.
fn hopper_entry(entry: Entry, kv_heads: u32, pairs: u32) -> Entry {
    let tiles = pairs.div_ceil(128);
    let splits = policy::hopper_splits(kv_heads * tiles);
    let mut entry = entry.from_text("hopper.cu", include_str!("hopper.cu"));
    entry.function = "attn_flash_hopper";
    // 128 queries, two tiles each of 80 keys and values, their barriers, and what aligns them.
    let shared = (128 + 2 * (80 + 80)) * 512 + 64 + 1024;
    entry.constant("SPLITS", splits).shared(shared).over([kv_heads, tiles, splits], 384)
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    let entry = attention::head_constants(a.head_dim, launch.entry("attn_flash"))?;
    let entry = attention::score_constants(a.head_dim, a.q_heads, a.kv_heads, entry)?;
    let pairs = a.step.rows * (a.q_heads / a.kv_heads);
    if launch.target.products == Products::TensorOperations && tensors_support(a.head_dim) {
        let mut entry = entry.from_text("tensors.metal", include_str!("tensors.metal"));
        entry.function = "attn_flash_tensors";
        return Ok(entry
            .constant("TENSOR_OPERATIONS", 1u32)
            .constant("TILE_ROWS", 32u32)
            .over([a.kv_heads, pairs.div_ceil(32), 1], 128));
    }
    if launch.target.family == (Family::Nvidia { capability: 90 }) && a.head_dim == 256 {
        return Ok(hopper_entry(entry, a.kv_heads, pairs));
    }
    let row_tiles = policy::row_tiles(&launch.target);
    let tiles = pairs.div_ceil(32 * row_tiles);
    Ok(entry.constant("ROW_TILES", row_tiles).over([a.kv_heads, tiles, 1], 128))
}
