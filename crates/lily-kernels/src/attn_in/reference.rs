//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::math::{dot, rms_scale};

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, xn, x_ss) = (io.i32(bind::CONTROL), io.f32(bind::XN), io.f32(bind::X_SS));
    let (weight, hidden) = (io.f32(bind::WEIGHT), a.hidden as usize);
    for row in a.step.live_rows(&control) {
        let ss = &x_ss[row * a.ss_stride as usize..][..a.ss_tiles as usize];
        let scale = rms_scale(ss.iter().sum(), hidden, a.rms_eps);
        let x = &xn[row * hidden..(row + 1) * hidden];
        for (out, w) in weight.chunks(hidden).enumerate() {
            let (binding, at) = a.place(out, row);
            io.store(binding, at, [scale * dot(w, x)]);
        }
    }
}
