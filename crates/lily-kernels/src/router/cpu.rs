//! CPU face: blocks of matrix rows by blocks of tokens, always with f32 inputs.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Numerics, ProductTiles, Scratch, multiply};

/// Matrix rows of one tile.
const TILE_ROWS: usize = 32;

fn product_tiles<'a>(l: &CpuLaunch<'a>, a: &Args) -> ProductTiles<'a> {
    let live = a.step.live_rows(l.control(bind::CONTROL));
    ProductTiles { live, rows: a.experts as usize + 1, tile_rows: TILE_ROWS }
}

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    product_tiles(l, &l.args()).count()
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (hidden, logits) = (a.norm.hidden(), a.experts as usize + 1);
    let (tokens, rows) = product_tiles(l, &a).nth(tile);
    let Scratch { inputs, floats, .. } = scratch;
    let (matrix, n) = (l.matrix(bind::WEIGHT), tokens.len());
    let fresh = inputs.begin(l, Numerics::Exact, matrix, (tokens.nth(0), n));
    for row in tokens.iter().take(if fresh { n } else { 0 }) {
        // SAFETY: no binding of this launch that holds `x`, its sums or the norm is written.
        let ((x, scale), norm) = unsafe {
            (
                a.norm.scaled_row(l.f32(bind::X), l.f32(bind::X_SS), row),
                l.f32(bind::POST_NORM).read(0..hidden),
            )
        };
        floats.clear();
        floats.extend(x.iter().zip(norm).map(|(x, w)| x * w));
        inputs.push(floats, scale);
    }
    let results = multiply(l.simd, matrix, (0, rows.clone()), inputs, 0..n, floats);
    for (token, results) in tokens.iter().zip(results.chunks_exact(rows.len())) {
        let span = token * logits + rows.start..token * logits + rows.end;
        // SAFETY: these matrix rows of this token belong to this tile alone.
        unsafe { l.f32(bind::LOGITS).write(span) }.copy_from_slice(results);
    }
}
