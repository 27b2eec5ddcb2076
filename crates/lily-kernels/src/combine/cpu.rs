//! CPU face: blocks of rows.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Scratch};
use crate::residual::Write;

/// Rows of one tile: a few microseconds each at the real model's width.
const TILE_ROWS: usize = 4;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    a.step.live_rows(l.control(bind::CONTROL)).len().div_ceil(TILE_ROWS)
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (hidden, slots) = (a.residual.hidden as usize, a.slots as usize);
    let live = a.step.live_rows(l.control(bind::CONTROL));
    for row in live.part(TILE_ROWS, tile).iter() {
        let of = row * slots * hidden..(row + 1) * slots * hidden;
        // SAFETY: the experts' results are not written by this launch.
        let moe_y = unsafe { l.f32(bind::MOE_Y).read(of) };
        let sum = &mut scratch.floats;
        sum.clear();
        sum.extend_from_slice(&moe_y[..hidden]);
        moe_y[hidden..].chunks(hidden).for_each(|y| l.simd.axpy(1.0, y, sum));
        // SAFETY: the row belongs to this tile alone.
        unsafe { a.residual.store_columns(l, bind::X, row, 0..hidden, sum, Write::Add) };
    }
}
