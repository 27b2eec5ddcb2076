//! CPU face: a single tile, which copies each control row before it writes it.

use lily_plan::control::{STOP_IDS, WORDS};

use super::{Args, bind, choose};
use crate::cpu::{CpuLaunch, Scratch};

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    let control = l.control(bind::CONTROL);
    usize::from(a.rows().any(|row| a.control_row(control, row).is_some()))
}

pub(super) fn run(l: &CpuLaunch<'_>, _tile: usize, _scratch: &mut Scratch) {
    let a: Args = l.args();
    let tiles = a.head_tiles as usize;
    for row in a.rows() {
        let Some(was) = a.control_row(l.control(bind::CONTROL), row) else { continue };
        let sequence = a.step.sequence_of(row);
        let words = sequence * WORDS..(sequence + 1) * WORDS;
        let candidates = row * tiles..(row + 1) * tiles;
        // SAFETY: the launch writes none of these buffers.
        let (values, ids, stops) = unsafe {
            (
                l.f32(bind::BEST_VALUE).read(candidates.clone()),
                l.i32(bind::BEST_ID).read(candidates),
                l.i32(bind::STOP_IDS).read(sequence * STOP_IDS..(sequence + 1) * STOP_IDS),
            )
        };
        let token = choose(values, ids);
        if let Some(token) = token {
            let at = a.ring_at(sequence, &was);
            // SAFETY: this tile is the only one; nothing else refers to the ring.
            unsafe { l.i32(bind::OUTPUT).write(at..at + 1)[0] = token };
        }
        // SAFETY: this tile is the only one; `was` is a copy, no reference to the block is alive.
        unsafe { l.i32(bind::CONTROL).write(words) }.copy_from_slice(&a.next(was, token, stops));
    }
}
