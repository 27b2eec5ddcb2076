//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let control = io.i32(bind::CONTROL);
    let ids = if a.step.is_prefill() { io.i32(bind::PROMPT) } else { control.clone() };
    let (table, hidden) = (io.f32(bind::WEIGHT), a.residual.hidden as usize);
    for row in a.step.live_rows(&control).iter() {
        let id = a.table_row(ids[a.id_at(row)]);
        a.residual.store_row(io, bind::RESIDUAL, row, &table[id * hidden..(id + 1) * hidden]);
    }
}
