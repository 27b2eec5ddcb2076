//! CPU face: blocks of output columns, a whole number of partial sums of squares each.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Scratch, part, product};
use crate::residual::Write;

/// Output columns of one tile; a multiple of every `ss_columns`.
const TILE_ROWS: usize = 64;
/// Input rows of one tile; they stay in the second-level cache.
const TILE_TOKENS: usize = 32;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    let live = a.step.live_rows(l.control(bind::CONTROL)).len();
    live.div_ceil(TILE_TOKENS) * (a.residual.hidden as usize).div_ceil(TILE_ROWS)
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (hidden, width) = (a.residual.hidden as usize, a.q_width as usize);
    let row_tiles = hidden.div_ceil(TILE_ROWS);
    let live = a.step.live_rows(l.control(bind::CONTROL));
    let tokens = live.part(TILE_TOKENS, tile / row_tiles);
    let columns = part(hidden, TILE_ROWS, tile % row_tiles);
    let Scratch { inputs, floats, .. } = scratch;
    inputs.clear(l.numerics, width);
    for row in tokens.iter() {
        // SAFETY: no tile of this launch writes `att`.
        inputs.push(unsafe { l.f32(bind::ATT).read(row * width..(row + 1) * width) }, 1.0);
    }
    floats.resize(TILE_TOKENS * TILE_ROWS, 0.0);
    let (matrix, mut out) = (l.matrix(bind::WEIGHT), [0.0; TILE_TOKENS]);
    for (i, row) in columns.clone().enumerate() {
        product(l.simd, matrix.row(0, row), inputs, &mut out[..tokens.len()]);
        for (t, value) in out[..tokens.len()].iter().enumerate() {
            floats[t * TILE_ROWS + i] = *value;
        }
    }
    for (t, row) in tokens.iter().enumerate() {
        let result = &floats[t * TILE_ROWS..][..columns.len()];
        // SAFETY: these columns of this row belong to this tile alone.
        unsafe {
            a.residual.store_columns(l, bind::RESIDUAL, row, columns.clone(), result, Write::Add);
        }
    }
}
