//! Decode attention over few keys: norm, rotary, softmax, values and gate in one launch.
//!
//! `att = σ(gate) ∘ softmax(q · Kᵀ / sqrt(head_dim)) · V` over all keys of the sequence, with q, the
//! new key and the new value prepared as in [`crate::attn_prepare`] and stored in the cache.
//! Correct for any length; meant for less than 256 keys, where splitting does not pay.
//! Mapping: a threadgroup owns a query head; the first head of a KV group stores the new rows.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::attention::{self, PreparedArgs, PreparedBuffers};
use crate::cpu::CpuFace;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "attn_short",
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
    }
}

/// Indices of the bindings behind those of the prologue.
mod bind {
    use crate::attention::prepared::bind;

    pub const CONTROL: usize = bind::CONTROL;
    pub const K: usize = bind::K;
    pub const GATE: usize = bind::END;
    pub const ATT: usize = bind::END + 1;
}

/// Buffers of a launch.
pub struct Buffers {
    /// Projections, norms and cache.
    pub prepared: PreparedBuffers,
    /// act `[rows, q_heads, head_dim]`.
    pub gate: BufferId,
    /// act `[rows, q_width]`.
    pub att: BufferId,
}

/// Records the launch of a decode step.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args = Args { step: cx.step_args(), prepared: PreparedArgs::new(cx) };
    let mut bindings = buffers.prepared.bindings(cx);
    bindings.push(Binding::read("gate", buffers.gate, access::rows(cx)));
    bindings.push(Binding::write("att", buffers.att, access::rows(cx)));
    let flops = 4 * shape.q_width() as u64;
    Launch::new(
        KERNEL.name,
        cx.layer,
        args,
        bindings,
        [shape.q_heads as u32, cx.step.rows() as u32, 1],
        256,
        move |live| flops * live.lengths().iter().sum::<usize>() as u64,
    )
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let prepared = launch.args::<Args>().prepared;
    let entry = prepared.constants(launch.entry("attn_short"))?;
    let (head_dim, q_heads) = (prepared.rotary.head_dim, prepared.q_heads);
    let entry = attention::score_constants(head_dim, q_heads, prepared.kv_heads, entry)?;
    Ok(entry.constant("THREADS", launch.threads))
}
