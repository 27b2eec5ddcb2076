//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::math::dot;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, x, x_ss) = (io.i32(bind::CONTROL), io.f32(bind::X), io.f32(bind::X_SS));
    let (norm, weight) = (io.f32(bind::POST_NORM), io.f32(bind::WEIGHT));
    let (hidden, logits) = (a.norm.hidden(), a.experts as usize + 1);
    for row in a.step.live_rows(&control).iter() {
        let scale = a.norm.scale(&x_ss, row);
        let x = a.norm.row(&x, row);
        let x: Vec<f32> = x.iter().zip(norm.iter()).map(|(x, w)| x * w).collect();
        let y: Vec<f32> = weight.chunks(hidden).map(|w| scale * dot(w, &x)).collect();
        io.store(bind::LOGITS, row * logits, y);
    }
}
