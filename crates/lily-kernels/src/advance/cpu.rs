//! CPU face: a single tile.

use lily_plan::control::WORDS;

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Scratch};

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    usize::from(a.next(l.control(bind::CONTROL)).is_some())
}

pub(super) fn run(l: &CpuLaunch<'_>, _tile: usize, _scratch: &mut Scratch) {
    let a: Args = l.args();
    if let Some(now) = a.next(l.control(bind::CONTROL)) {
        let first = a.step.sequence as usize * WORDS;
        // SAFETY: this tile is the only one; `now` is a copy, no reference to the block is alive.
        unsafe { l.i32(bind::CONTROL).write(first..first + WORDS) }.copy_from_slice(&now);
    }
}
