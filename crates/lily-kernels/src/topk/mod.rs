//! Choice of experts: softmax over all routed experts, the `top_k` most probable ones (ties to the
//! lowest index) with weights `p / Σ chosen p`, and in the last slot the shared expert, index
//! `experts`, with weight `σ(logits[experts])`.
//!
//! A threadgroup owns one token: one simdgroup finds the maximum `top_k` times. NaN counts as lowest,
//! so ids are always distinct and in range.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::cpu::CpuFace;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::routing::RoutingArgs;
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "topk",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// The step.
        pub step: StepArgs,
        /// Experts.
        pub routing: RoutingArgs,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const LOGITS: usize = 1;
    pub const IDS: usize = 2;
    pub const ROUTE: usize = 3;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// f32 `[rows, experts + 1]`.
    pub router_logits: BufferId,
    /// i32 `[rows, slots]`.
    pub ids: BufferId,
    /// f32 `[rows, slots]`.
    pub route: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let args = Args { step: cx.step_args(), routing: RoutingArgs::new(cx.shape) };
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("router_logits", buffers.router_logits, access::rows(cx)),
        Binding::write("ids", buffers.ids, access::rows(cx)),
        Binding::write("route", buffers.route, access::rows(cx)),
    ];
    let flops = 20 * cx.shape.experts as u64;
    let grid = [cx.step.rows() as u32, 1, 1];
    Launch::new(KERNEL.name, cx.layer, args, bindings, grid, 32, move |live| {
        flops * live.rows().len() as u64
    })
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    launch.args::<Args>().routing.constants(launch.entry("topk"))
}
