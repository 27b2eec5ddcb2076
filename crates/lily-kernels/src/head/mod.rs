//! LM head: `logits = (xn · Wᵀ) / rms(x)`, and the best id of every group of matrix rows.
//!
//! [`Rows`] says which rows are computed and where their results go. Logits are f32 and written in
//! full, padding ids included.
//!
//! A group of `head_rows` ids leaves one candidate: the largest logit of the ids below `vocab_used`,
//! the lowest id on ties; a group without such an id leaves −inf and its first id. If a logit that
//! could be chosen is NaN, the group's candidate is NaN with the id of the first, so that `sample`
//! sees it.
//! Mapping: a threadgroup owns one group of one row. The norm's weight is already in `xn`.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Access, Binding, BufferId, Launch, Region};

use crate::access;
use crate::cpu::CpuFace;
use crate::gpu::gemv::Gemv;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::norm::NormArgs;
use crate::shape::{LaunchContext, LiveRows, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "head",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// The step.
        pub step: StepArgs,
        /// 1: only the last live row, results in row 0. 0: every live row, results in the same row.
        pub last_row: u32,
        /// 1: candidates are written.
        pub candidates: u32,
        /// The input's norm.
        pub norm: NormArgs,
        /// Rows of the matrix.
        pub vocab: u32,
        /// Ids that may become candidates.
        pub vocab_used: u32,
        /// Matrix rows of one candidate.
        pub head_rows: u32,
    }
}

impl Args {
    /// Input rows of everything that is computed.
    fn rows<'a>(&self, control: &'a [i32]) -> LiveRows<'a> {
        let live = self.step.live_rows(control);
        match self.last_row {
            0 => live,
            _ => live.part(1, live.len().saturating_sub(1)),
        }
    }

    /// Output row of an input row.
    fn output(&self, row: usize) -> usize {
        if self.last_row != 0 { 0 } else { row }
    }

    /// Best logit and id of the group that starts at `first`.
    fn candidate(&self, first: usize, logits: &[f32]) -> (f32, i32) {
        let usable = (self.vocab_used as usize).saturating_sub(first).min(logits.len());
        let logits = &logits[..usable];
        let is_best: &dyn Fn(&f32) -> bool = match largest(logits) {
            None => &|logit| logit.is_nan(),
            Some(largest) => &move |&logit| logit == largest,
        };
        match logits.iter().position(is_best) {
            Some(i) => (logits[i], (first + i) as i32),
            None => (f32::NEG_INFINITY, first as i32),
        }
    }
}

/// The largest logit; `None` if one is not a number. Several are compared side by side.
fn largest(logits: &[f32]) -> Option<f32> {
    const LANES: usize = 8;
    let (blocks, rest) = logits.as_chunks::<LANES>();
    let (mut most, mut is_nan) = ([f32::NEG_INFINITY; LANES], [false; LANES]);
    for block in blocks {
        for i in 0..LANES {
            most[i] = if block[i] > most[i] { block[i] } else { most[i] };
            is_nan[i] |= block[i].is_nan();
        }
    }
    let is_nan = is_nan.contains(&true) || rest.iter().any(|logit| logit.is_nan());
    (!is_nan).then(|| most.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max))
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const XN: usize = 1;
    pub const X_SS: usize = 2;
    pub const WEIGHT: usize = 3;
    pub const LOGITS: usize = 4;
    /// Only with candidates.
    pub const BEST_VALUE: usize = 5;
    /// Only with candidates.
    pub const BEST_ID: usize = 6;
}

/// Which rows are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Decode: every live sequence, results in its row.
    Sequences,
    /// Prefill: the last live token, results in row 0.
    Last,
    /// Teacher-forced evaluation: every live token, results in its row; no candidates.
    All,
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// act `[rows, hidden]`.
    pub xn: BufferId,
    /// f32 `[rows, hidden / 8]`.
    pub x_ss: BufferId,
    /// matrix `[vocab, hidden]`.
    pub weight: BufferId,
    /// f32 `[logit_rows, vocab]`; [`Rows::All`] needs a row for each row of the step.
    pub logits: BufferId,
    /// f32 `[batch, head_tiles]`; unused by [`Rows::All`].
    pub best_value: BufferId,
    /// i32 `[batch, head_tiles]`; unused by [`Rows::All`].
    pub best_id: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, rows: Rows, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let (last_row, candidates) = (rows == Rows::Last, rows != Rows::All);
    let args = Args {
        step: cx.step_args(),
        last_row: u32::from(last_row),
        candidates: u32::from(candidates),
        norm: NormArgs::new(cx),
        vocab: shape.vocab as u32,
        vocab_used: shape.vocab_used as u32,
        head_rows: shape.head_rows() as u32,
    };
    let (xn, x_ss) = match last_row {
        true => (last_live_row(cx), last_live_row(cx)),
        false => (access::rows(cx), access::ss(cx)),
    };
    let written = || if last_row { first_row() } else { access::rows(cx) };
    let mut bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("xn", buffers.xn, xn),
        Binding::read("x_ss", buffers.x_ss, x_ss),
        Binding::read("weight", buffers.weight, access::whole()),
        Binding::write("logits", buffers.logits, written()),
    ];
    if candidates {
        bindings.push(Binding::write("best_value", buffers.best_value, written()));
        bindings.push(Binding::write("best_id", buffers.best_id, written()));
    }
    let macs = (shape.vocab * shape.hidden) as u64;
    let most = if last_row { 1 } else { cx.step.rows() };
    Launch::new(
        KERNEL.name,
        cx.layer,
        args,
        bindings,
        [shape.head_tiles() as u32, most as u32, 1],
        128,
        move |live| 2 * macs * live.rows().len().min(most) as u64,
    )
}

/// The last live row of a chunk.
fn last_live_row(cx: &LaunchContext<'_>) -> Access {
    Access::new(Region::new([0..cx.step.rows()]), |live| {
        live.rows().last().map(|&row| Region::at([row])).into_iter().collect()
    })
}

/// Row 0, if any row lives.
fn first_row() -> Access {
    Access::new(Region::at([0]), |live| {
        if live.rows().is_empty() { Vec::new() } else { vec![Region::at([0])] }
    })
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    let step_rows = if a.last_row != 0 { 1 } else { a.step.rows };
    let gemv = Gemv { format: launch.format(bind::WEIGHT)?, k: a.norm.hidden, rows: a.vocab };
    Unsupported::unless_multiple("the number of rows of a candidate", a.head_rows, 32)?;
    let tile = gemv.head(a.head_rows, step_rows);
    if a.vocab < tile.simd_rows() {
        let need = tile.simd_rows();
        return Err(Unsupported(format!("the vocabulary has {} ids, need {need}", a.vocab)));
    }
    let function = if a.candidates != 0 { "head" } else { "head_all" };
    let entry = gemv
        .constants(a.norm.constants(launch.entry(function)), tile)
        .constant("HEAD_ROWS", a.head_rows);
    Ok(entry.over(gemv.grid(tile, step_rows), tile.threads()))
}
