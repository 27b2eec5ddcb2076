//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::math::dot;
use crate::routing::work_entries;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    if a.step.live_rows(&io.i32(bind::CONTROL)).is_empty() {
        return;
    }
    let (hs, route, down) = (io.f32(bind::HS), io.f32(bind::ROUTE), io.f32(bind::DOWN));
    let (work, row_token) = (io.i32(bind::WORK), io.i32(bind::ROW_TOKEN));
    let row_slot = io.i32(bind::ROW_SLOT);
    let (hidden, inner) = (a.hidden as usize, a.inner as usize);
    for entry in work_entries(&work) {
        let size = hidden * inner;
        let matrix = &down[entry.expert * size..(entry.expert + 1) * size];
        for sorted in entry.rows {
            let at = row_token[sorted] as usize * a.routing.slots() + row_slot[sorted] as usize;
            let h = &hs[sorted * inner..(sorted + 1) * inner];
            let y: Vec<f32> = matrix.chunks(inner).map(|w| route[at] * dot(w, h)).collect();
            io.store(bind::MOE_Y, at * hidden, y);
        }
    }
}
