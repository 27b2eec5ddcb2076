//! CPU face: one work entry by blocks of columns; its rows share every weight row.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Scratch, multiply};
use crate::routing::cpu::GroupedTiles;

/// Columns of one tile: enough work to hide the preparation of the inputs.
const TILE_COLUMNS: usize = 256;

fn grouped_tiles<'a>(l: &CpuLaunch<'a>, a: &Args) -> GroupedTiles<'a> {
    let live = a.step.live_rows(l.control(bind::CONTROL));
    GroupedTiles::new(l, live, (bind::WORK, a.entries), (a.hidden as usize, TILE_COLUMNS))
}

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    grouped_tiles(l, &l.args()).count()
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (hidden, inner, slots) = (a.hidden as usize, a.inner as usize, a.routing.slots());
    let (entry, columns) = grouped_tiles(l, &a).nth(tile);
    // SAFETY: neither sorted rows nor inputs are written by this launch.
    let (tokens, row_slots, hs) = unsafe {
        (
            l.i32(bind::ROW_TOKEN).read(entry.rows.clone()),
            l.i32(bind::ROW_SLOT).read(entry.rows.clone()),
            l.f32(bind::HS).read(entry.rows.start * inner..entry.rows.end * inner),
        )
    };
    let Scratch { inputs, floats, .. } = scratch;
    let (matrix, n) = (l.matrix(bind::DOWN), tokens.len());
    if inputs.begin(l, l.numerics, matrix, (entry.rows.start, n)) {
        hs.chunks(inner).for_each(|h| inputs.push(h, 1.0));
    }
    let rows = (entry.expert, columns.clone());
    let results = multiply(l.simd, matrix, rows, inputs, 0..n, floats);
    let places = tokens.iter().zip(row_slots);
    for ((&token, &slot), results) in places.zip(results.chunks_exact(columns.len())) {
        let at = token as usize * slots + slot as usize;
        // SAFETY: the route weights are not written by this launch; these columns of this (token,
        // slot) pair belong to this tile alone.
        let (weight, y) = unsafe {
            (
                l.f32(bind::ROUTE).read(at..at + 1)[0],
                l.f32(bind::MOE_Y).write(at * hidden + columns.start..at * hidden + columns.end),
            )
        };
        for (y, result) in y.iter_mut().zip(results) {
            *y = weight * result;
        }
    }
}
