//! CPU face: blocks of output columns, a whole number of partial sums of squares each.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, ProductTiles, Scratch, multiply};
use crate::residual::Write;

/// Output columns of one tile; a multiple of every `ss_columns`.
const TILE_COLUMNS: usize = 64;

fn product_tiles<'a>(l: &CpuLaunch<'a>, a: &Args) -> ProductTiles<'a> {
    let live = a.step.live_rows(l.control(bind::CONTROL));
    ProductTiles { live, rows: a.residual.hidden as usize, tile_rows: TILE_COLUMNS }
}

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    product_tiles(l, &l.args()).count()
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let width = a.q_width as usize;
    let (tokens, columns) = product_tiles(l, &a).nth(tile);
    let Scratch { inputs, floats, .. } = scratch;
    let (matrix, n) = (l.matrix(bind::WEIGHT), tokens.len());
    if inputs.begin(l, l.numerics, matrix, (tokens.nth(0), n)) {
        for row in tokens.iter() {
            // SAFETY: no tile of this launch writes `att`.
            inputs.push(unsafe { l.f32(bind::ATT).read(row * width..(row + 1) * width) }, 1.0);
        }
    }
    let results = multiply(l.simd, matrix, (0, columns.clone()), inputs, 0..n, floats);
    for (row, result) in tokens.iter().zip(results.chunks_exact(columns.len())) {
        let columns = columns.clone();
        // SAFETY: these columns of this row belong to this tile alone.
        unsafe { a.residual.store_columns(l, bind::RESIDUAL, row, columns, result, Write::Add) };
    }
}
