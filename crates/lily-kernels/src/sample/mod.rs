//! Greedy choice: the best candidate of the head becomes the sequence's next token.
//!
//! Ties go to the lowest id. [`crate::choice`] says what becomes of the token. If a candidate is NaN, or
//! the best is infinite, nothing is chosen and the sequence halts with `NON_FINITE`.
//! Mapping: one threadgroup for each row; the candidates of a prefill chunk are in row 0.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch, Live, Region};

use crate::choice::ChoiceArgs;
use crate::cpu::CpuFace;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::shape::LaunchContext;
use crate::table::Kernel;
use crate::{access, choice};

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "sample",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// Step and session.
        pub choice: ChoiceArgs,
        /// Candidates of a row.
        pub head_tiles: u32,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const BEST_VALUE: usize = 1;
    pub const BEST_ID: usize = 2;
    pub const STOP_IDS: usize = 3;
    pub const OUTPUT: usize = 4;
}

const BINDINGS: choice::Bindings =
    choice::Bindings { control: bind::CONTROL, stop_ids: bind::STOP_IDS, output: bind::OUTPUT };

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`, read and written.
    pub control: BufferId,
    /// f32 `[batch, head_tiles]`.
    pub best_value: BufferId,
    /// i32 `[batch, head_tiles]`.
    pub best_id: BufferId,
    /// i32 `[batch, 8]`, padded with −1.
    pub stop_ids: BufferId,
    /// i32 `[batch, ring]`.
    pub output: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let head_tiles = cx.shape.head_tiles();
    let args = Args { choice: ChoiceArgs::new(cx), head_tiles: head_tiles as u32 };
    let values = buffers.best_value;
    let chooses = move |live: &Live<'_>, row| choice::chooses(live, values, row, head_tiles);
    let bindings = vec![
        Binding::owned(
            "control",
            buffers.control,
            access::sequence_rows(cx),
            access::sequences(cx, |s, _, _| vec![Region::at([s])]),
        ),
        Binding::read("best_value", buffers.best_value, choice::candidates(cx)),
        Binding::read("best_id", buffers.best_id, choice::candidates(cx)),
        Binding::read("stop_ids", buffers.stop_ids, access::sequence_rows(cx)),
        Binding::write("output", buffers.output, choice::output(cx, chooses)),
    ];
    let rows = args.choice.rows().len() as u32;
    Launch::new(KERNEL.name, cx.layer, args, bindings, [rows, 1, 1], 1024, move |live| {
        (2 * head_tiles * live.sequences().len()) as u64
    })
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    let threads = a.head_tiles.next_multiple_of(32).clamp(32, 1024);
    let entry = launch.entry("sample").over(launch.grid, threads);
    Ok(entry.constant("THREADS", threads).constant("SIMDGROUPS", threads / 32))
}
