//! CPU face: a single tile.

use super::{Args, BINDINGS, bind};
use crate::choice;
use crate::cpu::{CpuLaunch, Scratch};

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    choice::cpu_tiles(l, &l.args::<Args>().choice, &BINDINGS)
}

pub(super) fn run(l: &CpuLaunch<'_>, _tile: usize, _scratch: &mut Scratch) {
    let a: Args = l.args();
    let tiles = a.head_tiles as usize;
    choice::run_cpu(l, &a.choice, &BINDINGS, |row, _| {
        let candidates = row * tiles..(row + 1) * tiles;
        // SAFETY: the launch writes neither of these buffers.
        let (values, ids) = unsafe {
            (
                l.f32(bind::BEST_VALUE).read(candidates.clone()),
                l.i32(bind::BEST_ID).read(candidates),
            )
        };
        choice::best(values, ids.iter().copied())
    });
}
