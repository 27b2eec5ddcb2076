//! CPU face: a tile is several candidate groups for a block of rows, so that the largest matrix of
//! the model is read once.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, ProductTiles, Scratch, multiply};

/// Candidate groups of one tile: 256 matrix rows of a real vocabulary, tens of microseconds.
const TILE_GROUPS: usize = 8;

fn product_tiles<'a>(l: &CpuLaunch<'a>, a: &Args) -> ProductTiles<'a> {
    ProductTiles {
        live: a.rows(l.control(bind::CONTROL)),
        rows: a.vocab as usize,
        tile_rows: TILE_GROUPS * a.head_rows as usize,
    }
}

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    product_tiles(l, &l.args()).count()
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (vocab, group) = (a.vocab as usize, a.head_rows as usize);
    let (tokens, rows) = product_tiles(l, &a).nth(tile);
    let Scratch { inputs, floats, .. } = scratch;
    let (matrix, n) = (l.matrix(bind::WEIGHT), tokens.len());
    if inputs.begin(l, l.numerics, matrix, (tokens.nth(0), n)) {
        for row in tokens.iter() {
            // SAFETY: this launch writes neither inputs nor sums.
            let (x, scale) = unsafe { a.norm.scaled_row(l.f32(bind::XN), l.f32(bind::X_SS), row) };
            inputs.push(x, scale);
        }
    }
    let results = multiply(l.simd, matrix, (0, rows.clone()), inputs, 0..n, floats);
    for (row, logits) in tokens.iter().zip(results.chunks_exact(rows.len())) {
        let out = a.output(row);
        let span = out * vocab + rows.start..out * vocab + rows.end;
        // SAFETY: these ids of this row belong to this tile alone.
        unsafe { l.f32(bind::LOGITS).write(span) }.copy_from_slice(logits);
        if a.candidates == 0 {
            continue;
        }
        for (i, logits) in logits.chunks(group).enumerate() {
            let (value, id) = a.candidate(rows.start + i * group, logits);
            let at = out * vocab.div_ceil(group) + rows.start / group + i;
            // SAFETY: the tile covers whole groups, so each candidate has one writer.
            unsafe {
                l.f32(bind::BEST_VALUE).write(at..at + 1)[0] = value;
                l.i32(bind::BEST_ID).write(at..at + 1)[0] = id;
            }
        }
    }
}
