//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::math::dot;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, xn, x_ss) = (io.i32(bind::CONTROL), io.f32(bind::XN), io.f32(bind::X_SS));
    let (weight, hidden) = (io.f32(bind::WEIGHT), a.norm.hidden());
    for row in a.rows(&control).iter() {
        let out = a.output(row);
        let scale = a.norm.scale(&x_ss, row);
        let x = a.norm.row(&xn, row);
        let logits: Vec<f32> = weight.chunks(hidden).map(|w| scale * dot(w, x)).collect();
        if a.candidates != 0 {
            let size = a.head_rows as usize;
            let best = logits.chunks(size).enumerate().map(|(i, g)| a.candidate(i * size, g));
            let (values, ids): (Vec<f32>, Vec<i32>) = best.unzip();
            io.store(bind::BEST_VALUE, out * values.len(), values);
            io.store_i32(bind::BEST_ID, out * ids.len(), ids);
        }
        io.store(bind::LOGITS, out * logits.len(), logits);
    }
}
