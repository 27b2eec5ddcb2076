//! CPU face: blocks of matrix rows by blocks of tokens, always with f32 inputs.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Numerics, Scratch, part, product};

/// Matrix rows of one tile.
const TILE_ROWS: usize = 32;
/// Tokens of one tile.
const TILE_TOKENS: usize = 32;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    let live = a.step.live_rows(l.control(bind::CONTROL)).len();
    live.div_ceil(TILE_TOKENS) * (a.experts as usize + 1).div_ceil(TILE_ROWS)
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (hidden, logits) = (a.norm.hidden(), a.experts as usize + 1);
    let row_tiles = logits.div_ceil(TILE_ROWS);
    let live = a.step.live_rows(l.control(bind::CONTROL));
    let tokens = live.part(TILE_TOKENS, tile / row_tiles);
    scratch.inputs.clear(Numerics::Exact, hidden);
    for row in tokens.iter() {
        // SAFETY: no binding of this launch that holds `x`, its sums or the norm is written.
        let ((x, scale), norm) = unsafe {
            (
                a.norm.scaled_row(l.f32(bind::X), l.f32(bind::X_SS), row),
                l.f32(bind::POST_NORM).read(0..hidden),
            )
        };
        scratch.floats.clear();
        scratch.floats.extend(x.iter().zip(norm).map(|(x, w)| x * w));
        scratch.inputs.push(&scratch.floats, scale);
    }
    let matrix = l.matrix(bind::WEIGHT);
    let mut out = [0.0; TILE_TOKENS];
    for expert in part(logits, TILE_ROWS, tile % row_tiles) {
        product(l.simd, matrix.row(0, expert), &scratch.inputs, &mut out[..tokens.len()]);
        for (token, &value) in tokens.iter().zip(&out) {
            let at = token * logits + expert;
            // SAFETY: this (token, matrix row) pair belongs to this tile alone.
            unsafe { l.f32(bind::LOGITS).write(at..at + 1)[0] = value };
        }
    }
}
