//! CPU face: blocks of matrix rows, which are columns of the residual stream.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, ProductTiles, Scratch, multiply};
use crate::math::rms_scale;
use crate::residual::Write;

/// Residual columns of one decode tile: whole tiles of the epilogue's sums (64 or 8 columns), and
/// enough tiles for many threads.
const DECODE_COLUMNS: usize = 64;
/// In prefill the inputs of many tokens are prepared for each tile: more rows share them.
const PREFILL_COLUMNS: usize = 128;

fn product_tiles<'a>(l: &CpuLaunch<'a>, a: &Args) -> ProductTiles<'a> {
    let live = a.step.live_rows(l.control(bind::CONTROL));
    let tile_rows = if a.step.is_prefill() { PREFILL_COLUMNS } else { DECODE_COLUMNS };
    ProductTiles { live, rows: a.residual.hidden as usize, tile_rows }
}

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    product_tiles(l, &l.args()).count()
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (v_dim, slices) = (a.v_dim as usize, a.o_ss_slices as usize);
    let v_width = a.v_heads as usize * v_dim;
    let (tokens, columns) = product_tiles(l, &a).nth(tile);
    let Scratch { inputs, floats, more } = scratch;
    let (matrix, n) = (l.matrix(bind::WEIGHT), tokens.len());
    let fresh = inputs.begin(l, l.numerics, matrix, (tokens.nth(0), n));
    for row in tokens.iter().take(if fresh { n } else { 0 }) {
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
    let results = multiply(l.simd, matrix, (0, columns.clone()), inputs, 0..n, floats);
    for (row, result) in tokens.iter().zip(results.chunks_exact(columns.len())) {
        let columns = columns.clone();
        // SAFETY: these columns of this row belong to this tile alone.
        unsafe { a.residual.store_columns(l, bind::X, row, columns, result, Write::Add) };
    }
}
