//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::math::{dot, rms_scale};

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, og, weight) = (io.i32(bind::CONTROL), io.f32(bind::OG), io.f32(bind::WEIGHT));
    let x = io.f32(bind::X);
    let (heads, v_dim, slices) = (a.v_heads as usize, a.v_dim as usize, a.o_ss_slices as usize);
    let (hidden, v_width) = (a.residual.hidden as usize, heads * v_dim);
    for row in a.step.live_rows(&control).iter() {
        let mut g = og[row * v_width..(row + 1) * v_width].to_vec();
        if !a.step.is_prefill() {
            let o_ss = io.f32(bind::O_SS);
            for (h, g) in g.chunks_mut(v_dim).enumerate() {
                let ss: f32 = o_ss[(row * heads + h) * slices..][..slices].iter().sum();
                let scale = rms_scale(ss, v_dim, a.rms_eps);
                g.iter_mut().for_each(|g| *g *= scale);
            }
        }
        let sums = x[row * hidden..].iter().zip(weight.chunks(v_width));
        let new: Vec<f32> = sums.map(|(x, w)| x + dot(w, &g)).collect();
        a.residual.store_row(io, bind::X, row, &new);
    }
}
