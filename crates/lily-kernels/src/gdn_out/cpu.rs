//! CPU face: blocks of matrix rows, which are columns of the residual stream.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Scratch, part, product};
use crate::math::rms_scale;
use crate::residual::Write;

/// Residual columns of one decode tile: whole tiles of the epilogue's sums (64 or 8 columns), and
/// enough tiles for many threads.
const DECODE_COLUMNS: usize = 64;
/// In prefill the inputs of many tokens are prepared for each tile: more rows share them.
const PREFILL_COLUMNS: usize = 128;
/// Input rows of one tile; they stay in the second-level cache.
const TILE_TOKENS: usize = 32;

fn tile_columns(a: &Args) -> usize {
    if a.step.is_prefill() { PREFILL_COLUMNS } else { DECODE_COLUMNS }
}

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    let live = a.step.live_rows(l.control(bind::CONTROL)).len();
    live.div_ceil(TILE_TOKENS) * (a.residual.hidden as usize).div_ceil(tile_columns(&a))
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (v_dim, slices) = (a.v_dim as usize, a.o_ss_slices as usize);
    let (hidden, v_width) = (a.residual.hidden as usize, a.v_heads as usize * v_dim);
    let column_tiles = hidden.div_ceil(tile_columns(&a));
    let columns = part(hidden, tile_columns(&a), tile % column_tiles);
    let live = a.step.live_rows(l.control(bind::CONTROL));
    let tokens = live.part(TILE_TOKENS, tile / column_tiles);
    let Scratch { inputs, floats, more } = scratch;
    inputs.clear(l.numerics, v_width);
    for row in tokens.iter() {
        // SAFETY: the launch only reads `og`.
        let og = unsafe { l.f32(bind::OG).read(row * v_width..(row + 1) * v_width) };
        if a.step.is_prefill() {
            inputs.push(og, 1.0);
            continue;
        }
        let sums = a.v_heads as usize * slices;
        // SAFETY: the launch only reads `o_ss`.
        let o_ss = unsafe { l.f32(bind::O_SS).read(row * sums..(row + 1) * sums) };
        more.clear();
        for (og, ss) in og.chunks(v_dim).zip(o_ss.chunks(slices)) {
            let scale = rms_scale(ss.iter().sum(), v_dim, a.rms_eps);
            more.extend(og.iter().map(|g| g * scale));
        }
        inputs.push(more, 1.0);
    }
    let width = columns.len();
    floats.clear();
    floats.resize(tokens.len() * width, 0.0);
    let mut out = [0.0; TILE_TOKENS];
    for (i, column) in columns.clone().enumerate() {
        let row = l.matrix(bind::WEIGHT).row(0, column);
        product(l.simd, row, inputs, &mut out[..tokens.len()]);
        for (t, value) in out[..tokens.len()].iter().enumerate() {
            floats[t * width + i] = *value;
        }
    }
    for (row, sums) in tokens.iter().zip(floats.chunks(width)) {
        // SAFETY: these columns of this row belong to this tile alone.
        unsafe { a.residual.store_columns(l, bind::X, row, columns.clone(), sums, Write::Add) };
    }
}
