//! The oracle: for every expert, all tokens and slots that chose it.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::routing::group;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, ids) = (io.i32(bind::CONTROL), io.i32(bind::IDS));
    let rows: Vec<usize> = a.step.live_rows(&control).iter().collect();
    if rows.is_empty() {
        return;
    }
    let (top_k, experts) = (a.routing.top_k as usize, a.routing.experts as usize);
    let groups = group(&ids, &rows, top_k, experts, a.entries as usize);
    io.store_i32(bind::ROW_TOKEN, 0, groups.row_token);
    io.store_i32(bind::ROW_SLOT, 0, groups.row_slot);
    io.store_i32(bind::WORK, 0, groups.work);
}
