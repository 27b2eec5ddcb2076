//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::math::dot;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, att) = (io.i32(bind::CONTROL), io.f32(bind::ATT));
    let (weight, x) = (io.f32(bind::WEIGHT), io.f32(bind::X));
    let (hidden, width) = (a.residual.hidden as usize, a.q_width as usize);
    for row in a.step.live_rows(&control).iter() {
        let input = &att[row * width..(row + 1) * width];
        let old = &x[row * hidden..(row + 1) * hidden];
        let new: Vec<f32> =
            old.iter().zip(weight.chunks(width)).map(|(x, w)| x + dot(w, input)).collect();
        a.residual.store_row(io, bind::RESIDUAL, row, &new);
    }
}
