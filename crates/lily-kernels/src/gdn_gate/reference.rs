//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::math::{rms_scale, silu, sum_of_squares};

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, core, z) = (io.i32(bind::CONTROL), io.f32(bind::CORE), io.f32(bind::Z));
    let norm = io.f32(bind::NORM);
    let (heads, v_dim) = (a.v_heads as usize, a.v_dim as usize);
    for row in a.step.live_rows(&control).iter() {
        for head in row * heads..(row + 1) * heads {
            let o = &core[head * v_dim..(head + 1) * v_dim];
            let scale = rms_scale(sum_of_squares(o), v_dim, a.rms_eps);
            let gated = o.iter().zip(norm.iter()).zip(&z[head * v_dim..]);
            let og: Vec<f32> = gated.map(|((o, w), z)| o * scale * w * silu(*z)).collect();
            io.store(bind::OG, head * v_dim, og);
        }
    }
}
