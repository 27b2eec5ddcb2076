//! CPU face: one work entry by blocks of columns; its rows share every weight row.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Scratch, part, product};
use crate::routing::{WORK_WORDS, nth_work_entry, work_entries};
use crate::shape::GROUPED_TILE_ROWS;

/// Columns of one tile: enough work to hide the preparation of the inputs.
const TILE_COLUMNS: usize = 256;

fn work<'a>(l: &CpuLaunch<'a>, a: &Args) -> &'a [i32] {
    // SAFETY: the work list is not written by this launch.
    unsafe { l.i32(bind::WORK).read(0..a.entries as usize * WORK_WORDS) }
}

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    if a.step.live_rows(l.control(bind::CONTROL)).is_empty() {
        return 0;
    }
    work_entries(work(l, &a)).count() * (a.hidden as usize).div_ceil(TILE_COLUMNS)
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (hidden, inner, slots) = (a.hidden as usize, a.inner as usize, a.routing.slots());
    let blocks = hidden.div_ceil(TILE_COLUMNS);
    let entry = nth_work_entry(work(l, &a), tile / blocks);
    // SAFETY: neither sorted rows nor inputs are written by this launch.
    let (tokens, row_slots, hs) = unsafe {
        (
            l.i32(bind::ROW_TOKEN).read(entry.rows.clone()),
            l.i32(bind::ROW_SLOT).read(entry.rows.clone()),
            l.f32(bind::HS).read(entry.rows.start * inner..entry.rows.end * inner),
        )
    };
    scratch.inputs.clear(l.numerics, inner);
    hs.chunks(inner).for_each(|h| scratch.inputs.push(h, 1.0));
    let mut places = [(0, 0.0); GROUPED_TILE_ROWS];
    for (place, (&token, &slot)) in places.iter_mut().zip(tokens.iter().zip(row_slots)) {
        let at = token as usize * slots + slot as usize;
        // SAFETY: the route weights are not written by this launch.
        *place = (at * hidden, unsafe { l.f32(bind::ROUTE).read(at..at + 1)[0] });
    }
    let matrix = l.matrix(bind::DOWN);
    let mut out = [0.0; GROUPED_TILE_ROWS];
    let out = &mut out[..tokens.len()];
    for column in part(hidden, TILE_COLUMNS, tile % blocks) {
        product(l.simd, matrix.row(entry.expert, column), &scratch.inputs, out);
        for (&(base, weight), &value) in places.iter().zip(&*out) {
            let at = base + column;
            // SAFETY: this column of this (token, slot) pair belongs to this tile alone.
            unsafe { l.f32(bind::MOE_Y).write(at..at + 1)[0] = weight * value };
        }
    }
}
