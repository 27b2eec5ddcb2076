//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, moe_y, x) = (io.i32(bind::CONTROL), io.f32(bind::MOE_Y), io.f32(bind::X));
    let (hidden, slots) = (a.residual.hidden as usize, a.slots as usize);
    for row in a.step.live_rows(&control).iter() {
        let sum = |column: usize| -> f64 {
            (0..slots).map(|slot| f64::from(moe_y[(row * slots + slot) * hidden + column])).sum()
        };
        let x: Vec<f32> =
            (0..hidden).map(|column| x[row * hidden + column] + sum(column) as f32).collect();
        a.residual.store_row(io, bind::X, row, &x);
    }
}
