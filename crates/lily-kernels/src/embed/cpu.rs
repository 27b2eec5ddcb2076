//! CPU face: a few whole rows for each tile.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Scratch};
use crate::residual::Write;

/// Rows of one tile: about a microsecond each, so a chunk still makes many tiles.
const TILE_TOKENS: usize = 16;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    a.step.live_rows(l.control(bind::CONTROL)).len().div_ceil(TILE_TOKENS)
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (table, hidden) = (l.matrix(bind::WEIGHT), a.residual.hidden as usize);
    let control = l.control(bind::CONTROL);
    let live = a.step.live_rows(control);
    scratch.floats.resize(hidden, 0.0);
    for row in live.part(TILE_TOKENS, tile).iter() {
        let at = a.id_at(row);
        let id = if a.step.is_prefill() {
            // SAFETY: no tile of this launch writes the prompt.
            unsafe { l.i32(bind::PROMPT).read(at..at + 1)[0] }
        } else {
            control[at]
        };
        table.row(0, a.table_row(id)).dequantise(&mut scratch.floats[..hidden]);
        let x = &scratch.floats[..hidden];
        // SAFETY: this row belongs to this tile alone.
        unsafe { a.residual.store_columns(l, bind::RESIDUAL, row, 0..hidden, x, Write::Set) };
    }
}
