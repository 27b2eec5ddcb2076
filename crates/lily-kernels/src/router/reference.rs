//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::math::{dot, rms_scale};

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, x, x_ss) = (io.i32(bind::CONTROL), io.f32(bind::X), io.f32(bind::X_SS));
    let (norm, weight) = (io.f32(bind::POST_NORM), io.f32(bind::WEIGHT));
    let (hidden, logits) = (a.hidden as usize, a.experts as usize + 1);
    for row in a.step.live_rows(&control) {
        let ss = &x_ss[row * a.ss_stride as usize..][..a.ss_tiles as usize];
        let scale = rms_scale(ss.iter().sum(), hidden, a.rms_eps);
        let x = &x[row * hidden..(row + 1) * hidden];
        let x: Vec<f32> = x.iter().zip(norm.iter()).map(|(x, w)| x * w).collect();
        let y: Vec<f32> = weight.chunks(hidden).map(|w| scale * dot(w, &x)).collect();
        io.store(bind::LOGITS, row * logits, y);
    }
}
