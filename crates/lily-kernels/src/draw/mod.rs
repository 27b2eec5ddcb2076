//! Random choice: a token drawn from the largest logits becomes the sequence's next token.
//!
//! [`Draw`] is the rule. Every sequence has its own in a row of the `sampling` buffer, so that a plan
//! serves any parameters; a greedy sequence beside others has one candidate. [`crate::choice`] says what
//! becomes of the token, and what happens if logits are not finite: the same as for `sample`.
//!
//! The head leaves the best id of every group of `head_rows` ids. The k largest logits lie in the k
//! groups with the largest bests (the first ones, where bests are equal), so k groups of logits are read,
//! not the row. This takes one launch of one threadgroup for each row, and no more launches than a
//! greedy step; the candidates of a prefill chunk are in row 0.

#[allow(unsafe_code)]
mod cpu;
mod largest;
mod reference;
mod rule;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Access, Binding, BufferId, Launch, Live, Region};

use crate::choice::ChoiceArgs;
use crate::cpu::CpuFace;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::shape::LaunchContext;
use crate::table::Kernel;
use crate::{access, choice};

pub use largest::Largest;
pub use rule::{Draw, MOST};

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "draw",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// Step and session.
        pub choice: ChoiceArgs,
        /// Logits of a row.
        pub vocab: u32,
        /// Ids that may be chosen.
        pub vocab_used: u32,
        /// Ids of a group.
        pub head_rows: u32,
    }
}

impl Args {
    /// Groups of a row.
    fn groups(&self) -> usize {
        self.vocab.div_ceil(self.head_rows) as usize
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const BEST_VALUE: usize = 1;
    pub const LOGITS: usize = 2;
    pub const SAMPLING: usize = 3;
    pub const STOP_IDS: usize = 4;
    pub const OUTPUT: usize = 5;
}

const BINDINGS: choice::Bindings =
    choice::Bindings { control: bind::CONTROL, stop_ids: bind::STOP_IDS, output: bind::OUTPUT };

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`, read and written.
    pub control: BufferId,
    /// f32 `[batch, head_tiles]`.
    pub best_value: BufferId,
    /// f32 `[logit_rows, vocab]`.
    pub logits: BufferId,
    /// i32 `[batch, 8]`, rows of [`Draw::words`].
    pub sampling: BufferId,
    /// i32 `[batch, 8]`, padded with −1.
    pub stop_ids: BufferId,
    /// i32 `[batch, ring]`.
    pub output: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let groups = cx.shape.head_tiles();
    let args = Args {
        choice: ChoiceArgs::new(cx),
        vocab: cx.shape.vocab as u32,
        vocab_used: cx.shape.vocab_used as u32,
        head_rows: cx.shape.head_rows() as u32,
    };
    let values = buffers.best_value;
    let chooses = move |live: &Live<'_>, row| choice::chooses(live, values, row, groups);
    let bindings = vec![
        Binding::owned(
            "control",
            buffers.control,
            access::sequence_rows(cx),
            access::sequences(cx, |s, _, _| vec![Region::at([s])]),
        ),
        Binding::read("best_value", buffers.best_value, choice::candidates(cx)),
        Binding::read("logits", buffers.logits, logits(cx)),
        Binding::read("sampling", buffers.sampling, access::sequence_rows(cx)),
        Binding::read("stop_ids", buffers.stop_ids, access::sequence_rows(cx)),
        Binding::write("output", buffers.output, choice::output(cx, chooses)),
    ];
    let rows = args.choice.rows().len() as u32;
    Launch::new(KERNEL.name, cx.layer, args, bindings, [rows, 1, 1], 1024, move |live| {
        (2 * groups * live.sequences().len()) as u64
    })
}

/// Logits of the rows of candidates, padding left out. Which groups are read follows from the bests;
/// costs, asked without memory, count the most.
fn logits(cx: &LaunchContext<'_>) -> Access {
    let rows = choice::candidates(cx);
    let (bound, used) = (rows.bound.clone(), cx.shape.vocab_used);
    let most = used.min(MOST_GROUPS * cx.shape.head_rows());
    Access::new(bound, move |live| {
        let columns = if live.memory().is_some() { used } else { most };
        let rows = rows.exact(live).into_iter();
        rows.map(|row| Region::new([row.axes()[0].clone(), 0..columns])).collect()
    })
}

/// Groups whose logits a GPU reads: it looks for a border that this many or fewer lie above.
const MOST_GROUPS: usize = 2 * MOST;
/// Logits of one thread.
const THREAD_LOGITS: usize = 4;

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    Unsupported::unless_multiple("the number of ids of a group", a.head_rows, 32)?;
    let groups = a.groups();
    let kept = groups.min(MOST_GROUPS);
    let logits = kept * a.head_rows as usize;
    let threads =
        logits.div_ceil(THREAD_LOGITS).next_multiple_of(32).clamp(kept.next_multiple_of(32), 1024);
    let entry = launch.entry("draw").over(launch.grid, threads as u32);
    Ok(entry
        .constant("THREADS", threads as u32)
        .constant("HEAD_ROWS", a.head_rows)
        .constant("GROUPS", groups as u32)
        .constant("MOST_GROUPS", kept as u32))
}
