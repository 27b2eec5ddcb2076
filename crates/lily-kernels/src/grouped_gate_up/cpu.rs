//! CPU face: one work entry by blocks of inner columns; its tokens share every weight row.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Scratch, multiply};
use crate::routing::cpu::GroupedTiles;

/// Inner columns of one tile, two matrix rows each: enough work to hide the preparation of the
/// inputs.
const TILE_COLUMNS: usize = 64;

fn grouped_tiles<'a>(l: &CpuLaunch<'a>, a: &Args) -> GroupedTiles<'a> {
    let live = a.step.live_rows(l.control(bind::CONTROL));
    GroupedTiles::new(l, live, (bind::WORK, a.entries), (a.inner as usize, TILE_COLUMNS))
}

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    grouped_tiles(l, &l.args()).count()
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let inner = a.inner as usize;
    let (entry, columns) = grouped_tiles(l, &a).nth(tile);
    // SAFETY: the sorted rows are not written by this launch.
    let tokens = unsafe { l.i32(bind::ROW_TOKEN).read(entry.rows.clone()) };
    let Scratch { inputs, floats, .. } = scratch;
    let (matrix, n) = (l.matrix(bind::GATE_UP), tokens.len());
    if inputs.begin(l, l.numerics, matrix, (entry.rows.start, n)) {
        for &token in tokens {
            // SAFETY: this launch writes neither inputs nor sums.
            let (x, scale) =
                unsafe { a.norm.scaled_row(l.f32(bind::XN), l.f32(bind::X_SS), token as usize) };
            inputs.push(x, scale);
        }
    }
    let rows = 2 * columns.start..2 * columns.end;
    let results = multiply(l.simd, matrix, (entry.expert, rows.clone()), inputs, 0..n, floats);
    for (sorted, results) in entry.rows.zip(results.chunks_exact(rows.len())) {
        let span = sorted * inner + columns.start..sorted * inner + columns.end;
        // SAFETY: these columns of this sorted row belong to this tile alone.
        let hs = unsafe { l.f32(bind::HS).write(span) };
        l.simd.gated(results.as_chunks().0, hs);
    }
}
