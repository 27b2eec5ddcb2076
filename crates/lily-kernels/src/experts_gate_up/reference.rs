//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::math::{dot, silu};
use crate::routing::choose_into;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, xn, x_ss) = (io.i32(bind::CONTROL), io.f32(bind::XN), io.f32(bind::X_SS));
    let gate_up = io.f32(bind::GATE_UP);
    let (hidden, inner) = (a.norm.hidden(), a.inner as usize);
    let (slots, logits) = (a.routing.slots(), a.routing.logits());
    for row in a.step.live_rows(&control).iter() {
        let scale = a.norm.scale(&x_ss, row);
        let x = a.norm.row(&xn, row);
        let ids = if a.fused != 0 {
            let logits = &io.f32(bind::ROUTING)[row * logits..(row + 1) * logits];
            choose_into(logits, slots - 1, &mut Vec::new()).0.to_vec()
        } else {
            io.i32(bind::ROUTING)[row * slots..(row + 1) * slots].to_vec()
        };
        for (slot, id) in ids.into_iter().enumerate() {
            let size = 2 * inner * hidden;
            let matrix = &gate_up[id as usize * size..(id as usize + 1) * size];
            let y: Vec<f32> = matrix.chunks(hidden).map(|w| scale * dot(w, x)).collect();
            let h: Vec<f32> = y.chunks(2).map(|pair| silu(pair[0]) * pair[1]).collect();
            io.store(bind::H, (row * slots + slot) * inner, h);
        }
    }
}
