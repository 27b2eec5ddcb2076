//! Ranges that many kernels share.

use lily_plan::{Access, Live, Region, Step};

use crate::shape::LaunchContext;

/// The whole buffer, if any row lives.
pub fn whole() -> Access {
    Access::new(Region::whole(), |live| {
        if live.rows().is_empty() { Vec::new() } else { vec![Region::whole()] }
    })
}

/// Live rows of a scratch buffer.
pub fn rows(cx: &LaunchContext<'_>) -> Access {
    Access::new(Region::new([0..cx.step.rows()]), |live| {
        live.runs().into_iter().map(|run| Region::new([run])).collect()
    })
}

/// The first `columns` of live rows.
pub fn row_columns(cx: &LaunchContext<'_>, columns: usize) -> Access {
    Access::new(Region::new([0..cx.step.rows(), 0..columns]), move |live| {
        live.runs().into_iter().map(|run| Region::new([run, 0..columns])).collect()
    })
}

/// The partial sums of squares of live residual rows.
pub fn ss(cx: &LaunchContext<'_>) -> Access {
    row_columns(cx, cx.ss_tiles())
}

/// Rows of the control block (or of another buffer with a row for each sequence) that this plan
/// may look at. Read in full by every launch, halted or not.
pub fn sequence_rows(cx: &LaunchContext<'_>) -> Access {
    let range = match cx.step {
        Step::Decode { batch } => 0..batch,
        Step::Prefill { sequence, .. } => sequence..sequence + 1,
    };
    let region = Region::new([range]);
    Access::new(region.clone(), move |_| vec![region.clone()])
}

/// State of live sequences: `exact(sequence, position, added tokens)` gives the boxes.
pub fn sequences(
    cx: &LaunchContext<'_>,
    exact: impl Fn(usize, usize, usize) -> Vec<Region> + Send + Sync + 'static,
) -> Access {
    let range = match cx.step {
        Step::Decode { batch } => 0..batch,
        Step::Prefill { sequence, .. } => sequence..sequence + 1,
    };
    Access::new(Region::new([range]), move |live: &Live<'_>| {
        let of = |&s: &usize| exact(s, live.position(s), live.added());
        live.sequences().iter().flat_map(of).collect()
    })
}
