//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::math::dot;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, xn, x_ss) = (io.i32(bind::CONTROL), io.f32(bind::XN), io.f32(bind::X_SS));
    let weight = io.f32(bind::WEIGHT);
    let (hidden, channels) = (a.norm.hidden(), a.conv_channels as usize);
    let (v_width, gates) = (a.v_width as usize, 2 * a.v_heads as usize);
    for row in a.step.live_rows(&control).iter() {
        let scale = a.norm.scale(&x_ss, row);
        let x = a.norm.row(&xn, row);
        let y: Vec<f32> = weight.chunks(hidden).map(|w| scale * dot(w, x)).collect();
        let ring = a.conv_slots as usize;
        let qkv_row = if a.step.is_prefill() {
            row
        } else {
            row * ring + a.step.position_of(&control, row) % ring
        };
        io.store(bind::QKV, qkv_row * channels, &y[..channels]);
        io.store(bind::Z, row * v_width, &y[channels..channels + v_width]);
        io.store(bind::BA, row * gates, &y[channels + v_width..]);
    }
}
