//! CPU face: a tile is several candidate groups for a block of rows, so that the largest matrix of
//! the model is read once.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Scratch, part, product};

/// Candidate groups of one tile: 256 matrix rows of a real vocabulary, tens of microseconds.
const TILE_GROUPS: usize = 8;
/// Input rows of one tile; they stay in the second-level cache.
const TILE_TOKENS: usize = 32;

fn row_tiles(a: &Args) -> usize {
    (a.vocab as usize).div_ceil(TILE_GROUPS * a.head_rows as usize)
}

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    a.rows(l.control(bind::CONTROL)).len().div_ceil(TILE_TOKENS) * row_tiles(&a)
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (vocab, group) = (a.vocab as usize, a.head_rows as usize);
    let tokens = a.rows(l.control(bind::CONTROL)).part(TILE_TOKENS, tile / row_tiles(&a));
    let rows = part(vocab, TILE_GROUPS * group, tile % row_tiles(&a));
    let Scratch { inputs, floats, .. } = scratch;
    inputs.clear(l.numerics, a.norm.hidden());
    for row in tokens.iter() {
        // SAFETY: this launch writes neither inputs nor sums.
        let (x, scale) = unsafe { a.norm.scaled_row(l.f32(bind::XN), l.f32(bind::X_SS), row) };
        inputs.push(x, scale);
    }
    floats.resize(tokens.len() * rows.len(), 0.0);
    let (matrix, mut out) = (l.matrix(bind::WEIGHT), [0.0; TILE_TOKENS]);
    for (i, row) in rows.clone().enumerate() {
        product(l.simd, matrix.row(0, row), inputs, &mut out[..tokens.len()]);
        for (t, value) in out[..tokens.len()].iter().enumerate() {
            floats[t * rows.len() + i] = *value;
        }
    }
    for (logits, row) in floats.chunks(rows.len()).zip(tokens.iter()) {
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
