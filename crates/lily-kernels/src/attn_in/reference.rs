//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::math::dot;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, xn, x_ss) = (io.i32(bind::CONTROL), io.f32(bind::XN), io.f32(bind::X_SS));
    let (weight, hidden) = (io.f32(bind::WEIGHT), a.norm.hidden());
    for row in a.step.live_rows(&control).iter() {
        let scale = a.norm.scale(&x_ss, row);
        let x = a.norm.row(&xn, row);
        for (out, w) in weight.chunks(hidden).enumerate() {
            let (binding, at) = a.place(out, row);
            io.store(binding, at, [scale * dot(w, x)]);
        }
    }
}
