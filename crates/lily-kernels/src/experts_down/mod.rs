//! Down projections of the chosen experts in decode, their weighted sum and the residual epilogue:
//! `x += Σ_slot route[slot] · (W[expert] · h[slot])`, slots in order, the shared expert last.
//!
//! A threadgroup owns 8 columns of the residual row and loops over all slots, so there are no partial
//! results and the order of the sum is fixed. It must not read `xn`, which its epilogue overwrites.
//! In the fused form every threadgroup chooses the experts itself from the router's logits.

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
use crate::residual::{ResidualArgs, ResidualBuffers};
use crate::routing::{RoutingArgs, RoutingSource, chosen_experts};
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "experts_down",
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
        /// Inner width of an expert.
        pub inner: u32,
        /// The epilogue.
        pub residual: ResidualArgs,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const H: usize = 1;
    /// `ids`, or `router_logits` in the fused form.
    pub const ROUTING: usize = 2;
    pub const DOWN: usize = 3;
    /// First of the epilogue's four.
    pub const X: usize = 4;
    /// Not bound in the fused form.
    pub const ROUTE: usize = 8;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// act `[rows, slots, inner]`.
    pub h: BufferId,
    /// i32 `[rows, slots]`.
    pub ids: BufferId,
    /// f32 `[rows, slots]`.
    pub route: BufferId,
    /// matrix `[experts + 1, hidden, inner]`.
    pub down: BufferId,
    /// The epilogue.
    pub residual: ResidualBuffers,
}

/// Buffers of a launch in the fused form.
pub struct FusedBuffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// act `[rows, slots, inner]`.
    pub h: BufferId,
    /// f32 `[rows, experts + 1]`.
    pub router_logits: BufferId,
    /// matrix `[experts + 1, hidden, inner]`.
    pub down: BufferId,
    /// The epilogue.
    pub residual: ResidualBuffers,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let Buffers { control, h, ids, route, down, residual } = buffers;
    let routing = Binding::read("ids", ids, access::rows(cx));
    let route = Binding::read("route", route, access::rows(cx));
    let source = RoutingSource::Ids(ids);
    record(cx, [control, h, down], residual, source, routing, Some(route))
}

/// Records the launch with the choice of experts as its prologue.
pub fn launch_fused(cx: &LaunchContext<'_>, buffers: FusedBuffers) -> Launch {
    let FusedBuffers { control, h, router_logits, down, residual } = buffers;
    let routing = Binding::read("router_logits", router_logits, access::rows(cx));
    let source = RoutingSource::Logits(router_logits);
    record(cx, [control, h, down], residual, source, routing, None)
}

fn record(
    cx: &LaunchContext<'_>,
    [control, h, down]: [BufferId; 3],
    residual: ResidualBuffers,
    source: RoutingSource,
    routing: Binding,
    route: Option<Binding>,
) -> Launch {
    let shape = cx.shape;
    let args = Args {
        step: cx.step_args(),
        routing: RoutingArgs::new(shape),
        fused: u32::from(matches!(source, RoutingSource::Logits(_))),
        inner: shape.inner as u32,
        residual: ResidualArgs::new(cx),
    };
    let mut bindings = vec![
        Binding::read("control", control, access::sequence_rows(cx)),
        Binding::read("h", h, access::rows(cx)),
        routing,
        Binding::read("down", down, chosen_experts(cx, source)),
    ];
    bindings.extend(residual.adding(cx));
    bindings.extend(route);
    let grid = [shape.hidden.div_ceil(8) as u32, cx.step.rows() as u32, 1];
    let macs = (shape.inner * shape.hidden * shape.slots()) as u64;
    Launch::new(KERNEL.name, cx.layer, args, bindings, grid, 64, move |live| {
        2 * macs * live.rows().len() as u64
    })
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    let (hidden, columns) = (a.residual.hidden, a.residual.ss_columns);
    if columns != 8 {
        return Err(Unsupported(format!("sums of squares have {columns} columns, need 8")));
    }
    let rows = (a.routing.experts + 1) * hidden;
    let gemv = Gemv { format: launch.format(bind::DOWN)?, k: a.inner, rows };
    let tile = gemv.short(a.routing.slots() as u32);
    let function = if a.fused != 0 { "experts_down_fused" } else { "experts_down" };
    let entry = gemv.constants(launch.entry(function), tile).constant("HIDDEN", hidden);
    a.routing.constants(entry.over([hidden / columns, a.step.rows, 1], tile.threads()))
}
