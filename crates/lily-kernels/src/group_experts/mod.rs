//! Groups the (token, slot) pairs of a step by expert for the grouped products: a stable counting
//! sort, so that within an expert the tokens stand in order; then the list of tiles of at most
//! [`GROUPED_TILE_ROWS`] sorted rows of one expert.
//!
//! The shared expert's rows, the tokens in order, follow the routed ones. The whole work list is
//! written: entries behind the last tile are zero, and rows = 0 ends the list. A threadgroup places the
//! pairs of 64 tokens: it counts all pairs, a scan over the experts gives the places; never by arrival.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::cpu::CpuFace;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::routing::{RoutingArgs, session_work_entries, sorted_rows};
use crate::shape::{GROUPED_TILE_ROWS, LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "group_experts",
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
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const IDS: usize = 1;
    pub const ROW_TOKEN: usize = 2;
    pub const ROW_SLOT: usize = 3;
    pub const WORK: usize = 4;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// i32 `[rows, slots]`; the shared expert's slot is not looked at.
    pub ids: BufferId,
    /// i32 `[rows · slots]`: row of scratch of each sorted row.
    pub row_token: BufferId,
    /// i32 `[rows · slots]`: slot of each sorted row.
    pub row_slot: BufferId,
    /// i32 `[work_entries(rows), 4]`: see [`WORK_WORDS`](crate::routing::WORK_WORDS).
    pub work: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let args = Args {
        step: cx.step_args(),
        routing: RoutingArgs::new(cx.shape),
        entries: session_work_entries(cx) as u32,
    };
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("ids", buffers.ids, access::rows(cx)),
        Binding::write("row_token", buffers.row_token, sorted_rows(cx)),
        Binding::write("row_slot", buffers.row_slot, sorted_rows(cx)),
        Binding::write("work", buffers.work, access::whole()),
    ];
    let grid = [cx.step.rows().div_ceil(OWN_ROWS) as u32, 1, 1];
    let flops = 10 * cx.shape.slots() as u64;
    Launch::new(KERNEL.name, cx.layer, args, bindings, grid, 1024, move |live| {
        flops * live.rows().len() as u64
    })
}

/// Tokens whose pairs a threadgroup places; in the text too.
const OWN_ROWS: usize = 64;

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    let entry = launch.entry("group_experts").constant("TILE_ROWS", GROUPED_TILE_ROWS as u64);
    a.routing.constants(entry)
}
