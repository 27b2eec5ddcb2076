//! The oracle.

use lily_plan::{ReferenceIo, control};

use super::{Args, bind, choose};

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, stop_ids) = (io.i32(bind::CONTROL), io.i32(bind::STOP_IDS));
    let (values, ids) = (io.f32(bind::BEST_VALUE), io.i32(bind::BEST_ID));
    let tiles = a.head_tiles as usize;
    for row in a.rows() {
        let Some(was) = a.control_row(&control, row) else { continue };
        let sequence = a.step.sequence_of(row);
        let candidates = row * tiles..(row + 1) * tiles;
        let token = choose(&values[candidates.clone()], &ids[candidates]);
        let stops = &stop_ids[sequence * control::STOP_IDS..][..control::STOP_IDS];
        if let Some(token) = token {
            io.store_i32(bind::OUTPUT, a.ring_at(sequence, &was), [token]);
        }
        io.store_i32(bind::CONTROL, sequence * control::WORDS, a.next(was, token, stops));
    }
}
