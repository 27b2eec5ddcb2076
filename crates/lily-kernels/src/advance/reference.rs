//! The oracle.

use lily_plan::{ReferenceIo, control};

use super::{Args, bind};

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    if let Some(now) = a.next(&io.i32(bind::CONTROL)) {
        io.store_i32(bind::CONTROL, a.step.sequence as usize * control::WORDS, now);
    }
}
