//! Gate and up projections of grouped tokens: for every entry of the work list
//! `hs[row] = silu(g) ∘ u` with `g, u = (W[expert] · xn[token]) / rms(x[token])`.
//!
//! Matrix rows `2j` and `2j + 1` are gate and up of inner column `j`. A threadgroup owns a block
//! of matrix rows (128 are declared, the Metal text takes 64) of one entry, at most 32 sorted rows of
//! one expert, whose inputs it gathers by `row_token`. Entries with rows = 0 return at once. `hs`
//! stays in sorted order.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::cpu::CpuFace;
use crate::gpu::tiles::{Product, TILE_COLUMNS};
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::norm::NormArgs;
use crate::routing::{
    RoutingArgs, RoutingSource, chosen_experts, session_work_entries, sorted_rows,
};
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "grouped_gate_up",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// The step.
        pub step: StepArgs,
        /// Entries of the work list.
        pub entries: u32,
        /// The input's norm.
        pub norm: NormArgs,
        /// Inner width of an expert.
        pub inner: u32,
        /// Experts.
        pub routing: RoutingArgs,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const XN: usize = 1;
    pub const X_SS: usize = 2;
    pub const WORK: usize = 3;
    pub const ROW_TOKEN: usize = 4;
    pub const GATE_UP: usize = 5;
    pub const HS: usize = 6;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// act `[rows, hidden]`.
    pub xn: BufferId,
    /// f32 `[rows, hidden / 8]`.
    pub x_ss: BufferId,
    /// i32 `[work_entries(rows), 4]`: see [`WORK_WORDS`](crate::routing::WORK_WORDS).
    pub work: BufferId,
    /// i32 `[rows · slots]`.
    pub row_token: BufferId,
    /// matrix `[experts + 1, 2 inner, hidden]`.
    pub gate_up: BufferId,
    /// act `[rows · slots, inner]`.
    pub hs: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args = Args {
        step: cx.step_args(),
        entries: session_work_entries(cx) as u32,
        norm: NormArgs::new(cx),
        inner: shape.inner as u32,
        routing: RoutingArgs::new(shape),
    };
    let experts = chosen_experts(cx, RoutingSource::Work(buffers.work));
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("xn", buffers.xn, access::rows(cx)),
        Binding::read("x_ss", buffers.x_ss, access::ss(cx)),
        Binding::read("work", buffers.work, access::whole()),
        Binding::read("row_token", buffers.row_token, sorted_rows(cx)),
        Binding::read("gate_up", buffers.gate_up, experts),
        Binding::write("hs", buffers.hs, sorted_rows(cx)),
    ];
    let entries = shape.work_entries(cx.step.rows()) as u32;
    let grid = [(2 * shape.inner).div_ceil(128) as u32, entries, 1];
    let macs = (2 * shape.inner * shape.hidden * shape.slots()) as u64;
    Launch::new(KERNEL.name, cx.layer, args, bindings, grid, 128, move |live| {
        2 * macs * live.rows().len() as u64
    })
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    // A tile holds whole pairs of gate and up.
    Unsupported::unless_multiple("the inner width of an expert", a.inner, TILE_COLUMNS / 2)?;
    let product = Product {
        weight: bind::GATE_UP,
        k: a.norm.hidden,
        outputs: 2 * a.inner,
        experts: a.routing.experts + 1,
    };
    let (entries, pairs) = (launch.grid[1], a.step.rows * a.routing.top_k);
    let hopper = include_str!("hopper.cu");
    let entry = product.grouped_by_warpgroups(launch, KERNEL.name, hopper, entries, pairs)?;
    match entry {
        Some(entry) => Ok(entry.constant("SS_TILES", a.norm.ss_tiles)),
        None => product.grouped(launch, KERNEL.name, entries, pairs),
    }
}
