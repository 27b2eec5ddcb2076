//! Greedy choice: the best candidate of the head becomes the sequence's next token.
//!
//! Ties go to the lowest id. The token goes to the control block, where the next step reads it, and
//! to slot `produced mod ring` of the output ring; produced grows by 1, the position by 1 (prefill:
//! by the chunk's count). The sequence halts when the token is in its stop list, the limit is reached
//! or the cache is full.
//!
//! If a candidate is NaN, or the best is infinite, nothing is chosen: only the halt word changes, to
//! [`control::NON_FINITE`].
//! Mapping: one threadgroup for each row; the candidates of a prefill chunk are in row 0.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use std::ops::Range;

use lily_plan::{Access, Binding, BufferId, Launch, Live, Region, Step, control};

use crate::access;
use crate::cpu::CpuFace;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

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
        /// The step.
        pub step: StepArgs,
        /// Candidates of a row.
        pub head_tiles: u32,
        /// Positions of the KV cache.
        pub capacity: u32,
        /// Ids of the output ring.
        pub ring: u32,
    }
}

/// A control row.
type Row = [i32; control::WORDS];

impl Args {
    /// Rows of candidates, of halted sequences too: a prefill chunk has one.
    fn rows(&self) -> Range<usize> {
        0..if self.step.is_prefill() { 1 } else { self.step.rows as usize }
    }

    /// A copy of the control row behind a row of candidates; `None` if nothing is sampled.
    fn control_row(&self, control: &[i32], row: usize) -> Option<Row> {
        let mut was = [0; control::WORDS];
        let first = self.step.sequence_of(row) * control::WORDS;
        was.copy_from_slice(&control[first..first + control::WORDS]);
        let empty = self.step.is_prefill() && was[control::COUNT] <= 0;
        (was[control::HALT] == 0 && !empty).then_some(was)
    }

    /// The control row after the choice of `token`; `None` says that none could be chosen.
    fn next(&self, was: Row, token: Option<i32>, stop_ids: &[i32]) -> Row {
        let mut now = was;
        let Some(token) = token else {
            now[control::HALT] = control::NON_FINITE;
            return now;
        };
        let added = if self.step.is_prefill() { was[control::COUNT] } else { 1 };
        now[control::TOKEN] = token;
        now[control::PRODUCED] = was[control::PRODUCED].saturating_add(1);
        now[control::POSITION] = was[control::POSITION].saturating_add(added);
        let ends = stop_ids.contains(&token)
            || now[control::PRODUCED] >= was[control::LIMIT]
            || now[control::POSITION] >= self.capacity as i32;
        now[control::HALT] = if ends { control::ENDED } else { 0 };
        now
    }

    /// Element of the output ring for the next token of a sequence.
    fn ring_at(&self, sequence: usize, was: &Row) -> usize {
        sequence * self.ring as usize + ring_slot(was[control::PRODUCED], self.ring as usize)
    }
}

fn ring_slot(produced: i32, ring: usize) -> usize {
    produced.max(0) as usize % ring
}

/// The best id, the lowest on ties; `None` if any value is NaN or the largest is infinite.
fn choose(values: &[f32], ids: &[i32]) -> Option<i32> {
    let mut best = (f32::NEG_INFINITY, i32::MAX);
    for (&value, &id) in values.iter().zip(ids) {
        if value.is_nan() {
            return None;
        }
        if value > best.0 || (value == best.0 && id < best.1) {
            best = (value, id);
        }
    }
    best.0.is_finite().then_some(best.1)
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const BEST_VALUE: usize = 1;
    pub const BEST_ID: usize = 2;
    pub const STOP_IDS: usize = 3;
    pub const OUTPUT: usize = 4;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`, read and written.
    pub control: BufferId,
    /// f32 `[batch, head_tiles]`.
    pub best_value: BufferId,
    /// i32 `[batch, head_tiles]`.
    pub best_id: BufferId,
    /// i32 `[batch, 8]`, padded with [`control::NO_ID`].
    pub stop_ids: BufferId,
    /// i32 `[batch, ring]`.
    pub output: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let head_tiles = cx.shape.head_tiles();
    let args = Args {
        step: cx.step_args(),
        head_tiles: head_tiles as u32,
        capacity: cx.session.capacity as u32,
        ring: cx.session.ring as u32,
    };
    let prefill = cx.step.is_prefill();
    let candidates = move || match cx.step {
        Step::Decode { .. } => access::rows(cx),
        Step::Prefill { .. } => Access::new(Region::at([0]), |live| {
            live.sequences().iter().map(|_| Region::at([0])).collect()
        }),
    };
    let ring = cx.session.ring;
    let values = buffers.best_value;
    // A row without a choice leaves its ring alone; costs are asked without memory.
    let chooses = move |live: &Live<'_>, sequence: usize| {
        let row = if prefill { 0 } else { sequence };
        live.memory().is_none_or(|memory| {
            let values = memory.f32(values).get(row * head_tiles..(row + 1) * head_tiles);
            values.is_none_or(|values| choose(values, &vec![0; values.len()]).is_some())
        })
    };
    let sequences = sequence_range(cx);
    let output = Access::new(Region::new([sequences]), move |live| {
        let written = live.sequences().into_iter().filter(|&s| chooses(live, s));
        let slot = |s| Region::at([s, ring_slot(live.word(s, control::PRODUCED), ring)]);
        written.map(slot).collect()
    });
    let bindings = vec![
        Binding::owned(
            "control",
            buffers.control,
            access::sequence_rows(cx),
            access::sequences(cx, |s, _, _| vec![Region::at([s])]),
        ),
        Binding::read("best_value", buffers.best_value, candidates()),
        Binding::read("best_id", buffers.best_id, candidates()),
        Binding::read("stop_ids", buffers.stop_ids, access::sequence_rows(cx)),
        Binding::write("output", buffers.output, output),
    ];
    let rows = if prefill { 1 } else { cx.step.rows() };
    Launch::new(KERNEL.name, cx.layer, args, bindings, [rows as u32, 1, 1], 1024, move |live| {
        (2 * head_tiles * live.sequences().len()) as u64
    })
}

/// Sequences of the plan.
fn sequence_range(cx: &LaunchContext<'_>) -> Range<usize> {
    match cx.step {
        Step::Decode { batch } => 0..batch,
        Step::Prefill { sequence, .. } => sequence..sequence + 1,
    }
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    let threads = a.head_tiles.next_multiple_of(32).clamp(32, 1024);
    let entry = launch.entry("sample").over(launch.grid, threads);
    Ok(entry.constant("THREADS", threads).constant("SIMDGROUPS", threads / 32))
}
