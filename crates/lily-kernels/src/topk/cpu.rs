//! CPU face: blocks of tokens.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Scratch};
use crate::routing::choose;

/// Tokens of one tile.
const TILE_TOKENS: usize = 32;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    a.step.live_rows(l.control(bind::CONTROL)).len().div_ceil(TILE_TOKENS)
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, _scratch: &mut Scratch) {
    let a: Args = l.args();
    let (logits, slots) = (a.routing.logits(), a.routing.slots());
    let live = a.step.live_rows(l.control(bind::CONTROL));
    for row in live.part(TILE_TOKENS, tile).iter() {
        // SAFETY: the logits are not written; the row's ids and weights belong to this tile alone.
        let (logits, ids, route) = unsafe {
            (
                l.f32(bind::LOGITS).read(row * logits..(row + 1) * logits),
                l.i32(bind::IDS).write(row * slots..(row + 1) * slots),
                l.f32(bind::ROUTE).write(row * slots..(row + 1) * slots),
            )
        };
        choose(logits, ids, route);
    }
}
