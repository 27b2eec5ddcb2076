//! CPU face: blocks of columns of one row, all slots in order.

use super::{Args, bind};
use crate::cpu::{Block, CpuLaunch, Scratch, multiply, part};
use crate::residual::Write;
use crate::routing::choose_into;

/// Columns of one tile; a multiple of the columns that share a sum of squares.
const TILE_COLUMNS: usize = 64;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    let live = a.step.live_rows(l.control(bind::CONTROL)).len();
    live * (a.residual.hidden as usize).div_ceil(TILE_COLUMNS)
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (hidden, inner, slots) = (a.residual.hidden as usize, a.inner as usize, a.routing.slots());
    let blocks = hidden.div_ceil(TILE_COLUMNS);
    let row = a.step.live_rows(l.control(bind::CONTROL)).nth(tile / blocks);
    let columns = part(hidden, TILE_COLUMNS, tile % blocks);
    let of = row * slots..(row + 1) * slots;
    let Scratch { inputs, floats, more } = scratch;
    let (ids, route) = if a.fused != 0 {
        let n = a.routing.logits();
        // SAFETY: the logits are not written by this launch.
        let logits = unsafe { l.f32(bind::ROUTING).read(row * n..(row + 1) * n) };
        choose_into(logits, slots - 1, more)
    } else {
        // SAFETY: neither ids nor route weights are written by this launch.
        unsafe { (l.i32(bind::ROUTING).read(of.clone()), l.f32(bind::ROUTE).read(of.clone())) }
    };
    // SAFETY: `h` is not written by this launch.
    let h = unsafe { l.f32(bind::H).read(of.start * inner..of.end * inner) };
    let matrix = l.matrix(bind::DOWN);
    let mut sum = [0.0; TILE_COLUMNS];
    let sum = &mut sum[..columns.len()];
    if inputs.begin(l, l.numerics, matrix, (row, slots)) {
        h.chunks(inner).for_each(|h| inputs.push(h, 1.0));
    }
    for (slot, (&id, &weight)) in ids.iter().zip(route).enumerate() {
        let block = Block::from((id as usize, columns.clone()));
        // After the last slot the next tile begins with the first one.
        let block = match ids.get(slot + 1) {
            Some(&next) => block.before(next as usize, columns.start),
            None => block.before(ids[0] as usize, columns.end),
        };
        let results = multiply(l.simd, matrix, block, inputs, slot..slot + 1, floats);
        for (sum, result) in sum.iter_mut().zip(results) {
            *sum += weight * result;
        }
    }
    // SAFETY: these columns of this row belong to this tile alone.
    unsafe { a.residual.store_columns(l, bind::X, row, columns, sum, Write::Add) };
}
