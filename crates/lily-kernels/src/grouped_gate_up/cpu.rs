//! CPU face: one work entry by blocks of inner columns; its tokens share every weight row.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Scratch, part, product};
use crate::math::silu;
use crate::routing::{WORK_WORDS, nth_work_entry, work_entries};
use crate::shape::GROUPED_TILE_ROWS;

/// Inner columns of one tile, two matrix rows each: enough work to hide the preparation of the
/// inputs.
const TILE_COLUMNS: usize = 64;

fn work<'a>(l: &CpuLaunch<'a>, a: &Args) -> &'a [i32] {
    // SAFETY: the work list is not written by this launch.
    unsafe { l.i32(bind::WORK).read(0..a.entries as usize * WORK_WORDS) }
}

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    if a.step.live_rows(l.control(bind::CONTROL)).is_empty() {
        return 0;
    }
    work_entries(work(l, &a)).count() * (a.inner as usize).div_ceil(TILE_COLUMNS)
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let inner = a.inner as usize;
    let blocks = inner.div_ceil(TILE_COLUMNS);
    let entry = nth_work_entry(work(l, &a), tile / blocks);
    // SAFETY: the sorted rows are not written by this launch.
    let tokens = unsafe { l.i32(bind::ROW_TOKEN).read(entry.rows.clone()) };
    scratch.inputs.clear(l.numerics, a.norm.hidden());
    for &token in tokens {
        // SAFETY: this launch writes neither inputs nor sums.
        let (x, scale) =
            unsafe { a.norm.scaled_row(l.f32(bind::XN), l.f32(bind::X_SS), token as usize) };
        scratch.inputs.push(x, scale);
    }
    let matrix = l.matrix(bind::GATE_UP);
    let (mut gate, mut up) = ([0.0; GROUPED_TILE_ROWS], [0.0; GROUPED_TILE_ROWS]);
    let (gate, up) = (&mut gate[..tokens.len()], &mut up[..tokens.len()]);
    for column in part(inner, TILE_COLUMNS, tile % blocks) {
        product(l.simd, matrix.row(entry.expert, 2 * column), &scratch.inputs, gate);
        product(l.simd, matrix.row(entry.expert, 2 * column + 1), &scratch.inputs, up);
        for (sorted, (gate, up)) in entry.rows.clone().zip(gate.iter().zip(&*up)) {
            let at = sorted * inner + column;
            // SAFETY: this (sorted row, column) pair belongs to this tile alone.
            unsafe { l.f32(bind::HS).write(at..at + 1)[0] = silu(*gate) * up };
        }
    }
}
