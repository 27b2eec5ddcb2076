//! The end of a step: a chosen token becomes its sequence's next input.
//!
//! The token goes to the control block, where the next step reads it, and to slot `produced mod ring`
//! of the output ring; produced grows by 1, the position by 1 (prefill: by the chunk's count). The
//! sequence halts when the token is in its stop list, the limit is reached or the cache is full. If no
//! token could be chosen, only the halt word changes, to [`control::NON_FINITE`].
//!
//! Rows of candidates belong to sequences; a prefill chunk has row 0 alone.

use std::ops::Range;

use lily_plan::{Access, Live, Region, Step, control};

use crate::cpu::{CpuLaunch, SharedSlice};
use crate::gpu::msl_struct;
use crate::shape::{LaunchContext, StepArgs};

msl_struct! {
    /// The end of a step inside argument structs.
    pub struct ChoiceArgs {
        /// The step.
        pub step: StepArgs,
        /// Positions of the KV cache.
        pub capacity: u32,
        /// Ids of the output ring.
        pub ring: u32,
    }
}

/// A control row.
pub type Row = [i32; control::WORDS];

impl ChoiceArgs {
    /// The choices of a step.
    pub fn new(cx: &LaunchContext<'_>) -> Self {
        Self {
            step: cx.step_args(),
            capacity: cx.session.capacity as u32,
            ring: cx.session.ring as u32,
        }
    }

    /// Rows of candidates, of halted sequences too.
    pub fn rows(&self) -> Range<usize> {
        0..if self.step.is_prefill() { 1 } else { self.step.rows as usize }
    }

    /// A copy of the control row behind a row of candidates; `None` if nothing is chosen.
    pub fn control_row(&self, control: &[i32], row: usize) -> Option<Row> {
        let mut was = [0; control::WORDS];
        let first = self.step.sequence_of(row) * control::WORDS;
        was.copy_from_slice(&control[first..first + control::WORDS]);
        let empty = self.step.is_prefill() && was[control::COUNT] <= 0;
        (was[control::HALT] == 0 && !empty).then_some(was)
    }

    /// The position of the token that is chosen: with it, so many are before it.
    pub fn position(&self, was: &Row) -> i32 {
        let added = if self.step.is_prefill() { was[control::COUNT] } else { 1 };
        was[control::POSITION].saturating_add(added)
    }

    /// The control row after the choice of `token`; `None` says that none could be chosen.
    pub fn next(&self, was: Row, token: Option<i32>, stop_ids: &[i32]) -> Row {
        let mut now = was;
        let Some(token) = token else {
            now[control::HALT] = control::NON_FINITE;
            return now;
        };
        now[control::TOKEN] = token;
        now[control::PRODUCED] = was[control::PRODUCED].saturating_add(1);
        now[control::POSITION] = self.position(&was);
        let ends = stop_ids.contains(&token)
            || now[control::PRODUCED] >= was[control::LIMIT]
            || now[control::POSITION] >= self.capacity as i32;
        now[control::HALT] = if ends { control::ENDED } else { 0 };
        now
    }

    /// Element of the output ring for the next token of a sequence.
    pub fn ring_at(&self, sequence: usize, was: &Row) -> usize {
        sequence * self.ring as usize + ring_slot(was[control::PRODUCED], self.ring as usize)
    }
}

fn ring_slot(produced: i32, ring: usize) -> usize {
    produced.max(0) as usize % ring
}

/// The best id, the lowest on ties; `None` if any value is NaN or the largest is infinite.
pub fn best(values: &[f32], ids: impl IntoIterator<Item = i32>) -> Option<i32> {
    let mut best = (f32::NEG_INFINITY, i32::MAX);
    for (&value, id) in values.iter().zip(ids) {
        if value.is_nan() {
            return None;
        }
        if value > best.0 || (value == best.0 && id < best.1) {
            best = (value, id);
        }
    }
    best.0.is_finite().then_some(best.1)
}

/// Places of the bindings that every choice has.
pub(crate) struct Bindings {
    pub control: usize,
    pub stop_ids: usize,
    pub output: usize,
}

/// Tiles of a CPU face: one, if any row lives.
pub(crate) fn cpu_tiles(l: &CpuLaunch<'_>, a: &ChoiceArgs, bind: &Bindings) -> usize {
    let control = l.control(bind.control);
    usize::from(a.rows().any(|row| a.control_row(control, row).is_some()))
}

/// The body of a CPU face's only tile: `choose(row, control row)` for every row that lives.
pub(crate) fn run_cpu(
    l: &CpuLaunch<'_>,
    a: &ChoiceArgs,
    bind: &Bindings,
    mut choose: impl FnMut(usize, &Row) -> Option<i32>,
) {
    for row in a.rows() {
        let Some(was) = a.control_row(l.control(bind.control), row) else { continue };
        let sequence = a.step.sequence_of(row);
        let token = choose(row, &was);
        if let Some(token) = token {
            let at = a.ring_at(sequence, &was);
            write(l.i32(bind.output), at..at + 1, &[token]);
        }
        let stops = sequence * control::STOP_IDS..(sequence + 1) * control::STOP_IDS;
        // SAFETY: the launch does not write the stop list.
        let stops = unsafe { l.i32(bind.stop_ids).read(stops) };
        let words = sequence * control::WORDS..(sequence + 1) * control::WORDS;
        write(l.i32(bind.control), words, &a.next(was, token, stops));
    }
}

fn write(slice: SharedSlice<'_, i32>, range: Range<usize>, values: &[i32]) {
    // SAFETY: a choice is one tile, and `run_cpu` keeps copies of what it has read here, no references.
    unsafe { slice.write(range) }.copy_from_slice(values);
}

/// Candidates that a choice reads: rows of live sequences; those of a chunk are in row 0.
pub(crate) fn candidates(cx: &LaunchContext<'_>) -> Access {
    match cx.step {
        Step::Decode { .. } => crate::access::rows(cx),
        Step::Prefill { .. } => Access::new(Region::at([0]), |live| {
            live.sequences().iter().map(|_| Region::at([0])).collect()
        }),
    }
}

/// Slots of the output ring: one for each sequence for which `chooses(live, row of candidates)` says
/// that it gets a token. Costs are asked without memory: every row chooses then.
pub(crate) fn output(
    cx: &LaunchContext<'_>,
    chooses: impl Fn(&Live<'_>, usize) -> bool + Send + Sync + 'static,
) -> Access {
    let sequences = match cx.step {
        Step::Decode { batch } => 0..batch,
        Step::Prefill { sequence, .. } => sequence..sequence + 1,
    };
    let (prefill, ring) = (cx.step.is_prefill(), cx.session.ring);
    Access::new(Region::new([sequences]), move |live| {
        let written = live.sequences().into_iter();
        let written = written.filter(|&s| chooses(live, if prefill { 0 } else { s }));
        let slot = |s| Region::at([s, ring_slot(live.word(s, control::PRODUCED), ring)]);
        written.map(slot).collect()
    })
}

/// Whether a row of candidates, `[groups]` each, gives a token.
pub(crate) fn chooses(
    live: &Live<'_>,
    values: lily_plan::BufferId,
    row: usize,
    groups: usize,
) -> bool {
    live.memory().is_none_or(|memory| {
        let values = memory.f32(values).get(row * groups..(row + 1) * groups);
        values.is_none_or(|values| best(values, 0..).is_some())
    })
}
