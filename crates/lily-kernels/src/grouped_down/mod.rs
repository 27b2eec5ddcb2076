//! Down projections of grouped tokens: for every sorted row of every entry of the work list
//! `moe_y[token, slot] = route[token, slot] · (W[expert] · hs[row])`.
//!
//! A threadgroup owns a block of matrix rows (columns of `moe_y`; 128 are declared, the Metal text
//! takes 64) of one entry, at most 32 sorted rows of one expert, and scatters its results to (token,
//! slot). The slots are summed by `combine`: tiles of other experts add to the same token, which would
//! need atomics here. `moe_y` is f32.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::cpu::CpuFace;
use crate::gpu::tiles::Product;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::routing::{
    RoutingArgs, RoutingSource, chosen_experts, session_work_entries, sorted_rows,
};
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "grouped_down",
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
        /// Entries of the work list.
        pub entries: u32,
        /// Width of the residual stream.
        pub hidden: u32,
        /// Inner width of an expert.
        pub inner: u32,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const HS: usize = 1;
    pub const WORK: usize = 2;
    pub const ROW_TOKEN: usize = 3;
    pub const ROW_SLOT: usize = 4;
    pub const ROUTE: usize = 5;
    pub const DOWN: usize = 6;
    pub const MOE_Y: usize = 7;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// act `[rows · slots, inner]`.
    pub hs: BufferId,
    /// i32 `[work_entries(rows), 4]`: see [`WORK_WORDS`](crate::routing::WORK_WORDS).
    pub work: BufferId,
    /// i32 `[rows · slots]`.
    pub row_token: BufferId,
    /// i32 `[rows · slots]`.
    pub row_slot: BufferId,
    /// f32 `[rows, slots]`.
    pub route: BufferId,
    /// matrix `[experts + 1, hidden, inner]`.
    pub down: BufferId,
    /// f32 `[rows, slots, hidden]`.
    pub moe_y: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args = Args {
        step: cx.step_args(),
        routing: RoutingArgs::new(shape),
        entries: session_work_entries(cx) as u32,
        hidden: shape.hidden as u32,
        inner: shape.inner as u32,
    };
    let experts = chosen_experts(cx, RoutingSource::Work(buffers.work));
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("hs", buffers.hs, sorted_rows(cx)),
        Binding::read("work", buffers.work, access::whole()),
        Binding::read("row_token", buffers.row_token, sorted_rows(cx)),
        Binding::read("row_slot", buffers.row_slot, sorted_rows(cx)),
        Binding::read("route", buffers.route, access::rows(cx)),
        Binding::read("down", buffers.down, experts),
        Binding::write("moe_y", buffers.moe_y, access::rows(cx)),
    ];
    let entries = shape.work_entries(cx.step.rows()) as u32;
    let grid = [shape.hidden.div_ceil(128) as u32, entries, 1];
    let macs = (shape.inner * shape.hidden * shape.slots()) as u64;
    Launch::new(KERNEL.name, cx.layer, args, bindings, grid, 128, move |live| {
        2 * macs * live.rows().len() as u64
    })
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    let product = Product {
        weight: bind::DOWN,
        k: a.inner,
        outputs: a.hidden,
        experts: a.routing.experts + 1,
    };
    let (entries, pairs) = (launch.grid[1], a.step.rows * a.routing.top_k);
    let hopper = include_str!("hopper.cu");
    let entry = match product.grouped_by_warpgroups(launch, KERNEL.name, hopper, entries, pairs)? {
        Some(entry) => entry,
        None => product.grouped(launch, KERNEL.name, entries, pairs)?,
    };
    Ok(entry.constant("SLOTS", a.routing.slots() as u64))
}
