//! Gate and up projections of the chosen experts in decode, one slot at a time:
//! `h[row, slot] = silu(g) ∘ u` with `g, u = (W[expert] · xn) / rms(x)`.
//!
//! Matrix rows `2j` and `2j + 1` are gate and up of inner column `j`. A threadgroup owns 8 matrix
//! rows (4 columns of `h`) of one slot of one row; the shared expert is the last slot, so that it
//! needs no launch of its own. In the fused form every threadgroup chooses the experts itself from
//! the router's logits and `topk` is not launched.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::cpu::CpuFace;
use crate::gpu::gemv::Gemv;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::norm::NormArgs;
use crate::routing::{RoutingArgs, RoutingSource, chosen_experts};
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "experts_gate_up",
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
        /// 1 if the experts are chosen here, from the logits.
        pub fused: u32,
        /// The input's norm.
        pub norm: NormArgs,
        /// Inner width of an expert.
        pub inner: u32,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const XN: usize = 1;
    pub const X_SS: usize = 2;
    /// `ids`, or `router_logits` in the fused form.
    pub const ROUTING: usize = 3;
    pub const GATE_UP: usize = 4;
    pub const H: usize = 5;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// act `[rows, hidden]`.
    pub xn: BufferId,
    /// f32 `[rows, hidden / 8]`.
    pub x_ss: BufferId,
    /// i32 `[rows, slots]`.
    pub ids: BufferId,
    /// matrix `[experts + 1, 2 inner, hidden]`.
    pub gate_up: BufferId,
    /// act `[rows, slots, inner]`.
    pub h: BufferId,
}

/// Buffers of a launch in the fused form.
pub struct FusedBuffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// act `[rows, hidden]`.
    pub xn: BufferId,
    /// f32 `[rows, hidden / 8]`.
    pub x_ss: BufferId,
    /// f32 `[rows, experts + 1]`.
    pub router_logits: BufferId,
    /// matrix `[experts + 1, 2 inner, hidden]`.
    pub gate_up: BufferId,
    /// act `[rows, slots, inner]`.
    pub h: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let Buffers { control, xn, x_ss, ids, gate_up, h } = buffers;
    let routing = Binding::read("ids", ids, access::rows(cx));
    record(cx, [control, xn, x_ss, gate_up, h], routing, RoutingSource::Ids(ids))
}

/// Records the launch with the choice of experts as its prologue.
pub fn launch_fused(cx: &LaunchContext<'_>, buffers: FusedBuffers) -> Launch {
    let FusedBuffers { control, xn, x_ss, router_logits, gate_up, h } = buffers;
    let routing = Binding::read("router_logits", router_logits, access::rows(cx));
    record(cx, [control, xn, x_ss, gate_up, h], routing, RoutingSource::Logits(router_logits))
}

fn record(
    cx: &LaunchContext<'_>,
    [control, xn, x_ss, gate_up, h]: [BufferId; 5],
    routing: Binding,
    source: RoutingSource,
) -> Launch {
    let shape = cx.shape;
    let args = Args {
        step: cx.step_args(),
        routing: RoutingArgs::new(shape),
        fused: u32::from(matches!(source, RoutingSource::Logits(_))),
        norm: NormArgs::new(cx),
        inner: shape.inner as u32,
    };
    let bindings = vec![
        Binding::read("control", control, access::sequence_rows(cx)),
        Binding::read("xn", xn, access::rows(cx)),
        Binding::read("x_ss", x_ss, access::ss(cx)),
        routing,
        Binding::read("gate_up", gate_up, chosen_experts(cx, source)),
        Binding::write("h", h, access::rows(cx)),
    ];
    let grid = [(2 * shape.inner).div_ceil(8) as u32, shape.slots() as u32, cx.step.rows() as u32];
    let macs = (2 * shape.inner * shape.hidden * shape.slots()) as u64;
    Launch::new(KERNEL.name, cx.layer, args, bindings, grid, 64, move |live| {
        2 * macs * live.rows().len() as u64
    })
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    let (columns, slots) = (2 * a.inner, a.routing.slots() as u32);
    let rows = (a.routing.experts + 1) * columns;
    let gemv = Gemv { format: launch.format(bind::GATE_UP)?, k: a.norm.hidden, rows };
    // Every row of scratch has experts of its own.
    let tile = gemv.wide(1);
    Unsupported::unless_multiple("twice the inner width of an expert", columns, tile.rows())?;
    let entry = gemv
        .constants(a.norm.constants(launch.entry("experts_gate_up")), tile)
        .constant("INNER", a.inner)
        .constant("FUSED", a.fused);
    let grid = [columns / tile.rows(), slots, a.step.rows];
    a.routing.constants(entry.over(grid, tile.threads()))
}
