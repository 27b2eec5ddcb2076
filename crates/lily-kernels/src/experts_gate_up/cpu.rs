//! CPU face: one slot of one row by blocks of inner columns.

use super::{Args, bind};
use crate::cpu::{Block, CpuLaunch, Scratch, multiply, part};
use crate::routing::choose_into;

/// Inner columns of one tile, two matrix rows each: enough work to hide the preparation of the input.
const TILE_COLUMNS: usize = 64;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    let live = a.step.live_rows(l.control(bind::CONTROL)).len();
    live * a.routing.slots() * (a.inner as usize).div_ceil(TILE_COLUMNS)
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (inner, slots) = (a.inner as usize, a.routing.slots());
    let blocks = inner.div_ceil(TILE_COLUMNS);
    let live = a.step.live_rows(l.control(bind::CONTROL));
    let row = live.nth(tile / (blocks * slots));
    let slot = tile / blocks % slots;
    let columns = part(inner, TILE_COLUMNS, tile % blocks);
    let ids = if a.fused != 0 {
        let n = a.routing.logits();
        // SAFETY: the logits are not written by this launch.
        let logits = unsafe { l.f32(bind::ROUTING).read(row * n..(row + 1) * n) };
        choose_into(logits, slots - 1, &mut scratch.more).0
    } else {
        // SAFETY: the ids are not written by this launch.
        unsafe { l.i32(bind::ROUTING).read(row * slots..(row + 1) * slots) }
    };
    let id = ids[slot] as usize;
    let block = Block::from((id, 2 * columns.start..2 * columns.end));
    // After the last columns the next tile begins with the next slot.
    let block = match ids.get(slot + 1) {
        Some(&next) if columns.end == inner => block.before(next as usize, 0),
        _ => block,
    };
    let matrix = l.matrix(bind::GATE_UP);
    let Scratch { inputs, floats, .. } = scratch;
    if inputs.begin(l, l.numerics, matrix, (row, 1)) {
        // SAFETY: this launch writes neither inputs nor sums.
        let (x, scale) = unsafe { a.norm.scaled_row(l.f32(bind::XN), l.f32(bind::X_SS), row) };
        inputs.push(x, scale);
    }
    let at = (row * slots + slot) * inner;
    // SAFETY: these columns of this slot belong to this tile alone.
    let h = unsafe { l.f32(bind::H).write(at + columns.start..at + columns.end) };
    let results = multiply(l.simd, matrix, block, inputs, 0..1, floats);
    l.simd.gated(results.as_chunks().0, h);
}
