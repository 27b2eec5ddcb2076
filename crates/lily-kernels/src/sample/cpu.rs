//! CPU face: a single tile, since the control block is read as a whole before it is written.

use lily_plan::control::{STOP_IDS, WORDS};

use super::{Args, Row, bind, choose};
use crate::cpu::{CpuLaunch, Scratch};

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    usize::from(!a.rows(l.control(bind::CONTROL)).is_empty())
}

pub(super) fn run(l: &CpuLaunch<'_>, _tile: usize, _scratch: &mut Scratch) {
    let a: Args = l.args();
    let tiles = a.head_tiles as usize;
    for (row, sequence) in a.rows(l.control(bind::CONTROL)) {
        let words = sequence * WORDS..(sequence + 1) * WORDS;
        let candidates = row * tiles..(row + 1) * tiles;
        let mut was: Row = [0; WORDS];
        // SAFETY: this tile is the only one, and it copies the row before it writes it.
        was.copy_from_slice(unsafe { l.i32(bind::CONTROL).read(words.clone()) });
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
        // SAFETY: this tile is the only one; no reference into the row is alive.
        unsafe { l.i32(bind::CONTROL).write(words) }.copy_from_slice(&a.next(was, token, stops));
    }
}
