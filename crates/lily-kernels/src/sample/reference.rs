//! The oracle.

use lily_plan::{ReferenceIo, control};

use super::{Args, bind};
use crate::choice;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let Args { choice: a, head_tiles } = io.args();
    let (control, stop_ids) = (io.i32(bind::CONTROL), io.i32(bind::STOP_IDS));
    let (values, ids) = (io.f32(bind::BEST_VALUE), io.i32(bind::BEST_ID));
    let tiles = head_tiles as usize;
    for row in a.rows() {
        let Some(was) = a.control_row(&control, row) else { continue };
        let sequence = a.step.sequence_of(row);
        let candidates = row * tiles..(row + 1) * tiles;
        let token = choice::best(&values[candidates.clone()], ids[candidates].iter().copied());
        let stops = &stop_ids[sequence * control::STOP_IDS..][..control::STOP_IDS];
        if let Some(token) = token {
            io.store_i32(bind::OUTPUT, a.ring_at(sequence, &was), [token]);
        }
        io.store_i32(bind::CONTROL, sequence * control::WORDS, a.next(was, token, stops));
    }
}
