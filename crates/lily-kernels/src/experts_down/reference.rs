//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::math::dot;
use crate::routing::choose_into;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, h, x) = (io.i32(bind::CONTROL), io.f32(bind::H), io.f32(bind::X));
    let down = io.f32(bind::DOWN);
    let (hidden, inner) = (a.residual.hidden as usize, a.inner as usize);
    let (slots, logits) = (a.routing.slots(), a.routing.logits());
    for row in a.step.live_rows(&control).iter() {
        let (ids, route) = if a.fused != 0 {
            let logits = &io.f32(bind::ROUTING)[row * logits..(row + 1) * logits];
            let mut space = Vec::new();
            let (ids, route) = choose_into(logits, slots - 1, &mut space);
            (ids.to_vec(), route.to_vec())
        } else {
            let of = row * slots..(row + 1) * slots;
            (io.i32(bind::ROUTING)[of.clone()].to_vec(), io.f32(bind::ROUTE)[of].to_vec())
        };
        let mut sum = vec![0f64; hidden];
        for (slot, (id, weight)) in ids.into_iter().zip(route).enumerate() {
            let size = hidden * inner;
            let matrix = &down[id as usize * size..(id as usize + 1) * size];
            let h = &h[(row * slots + slot) * inner..][..inner];
            for (sum, w) in sum.iter_mut().zip(matrix.chunks(inner)) {
                *sum += f64::from(weight) * f64::from(dot(w, h));
            }
        }
        let x = &x[row * hidden..(row + 1) * hidden];
        let x: Vec<f32> = x.iter().zip(sum).map(|(x, y)| x + y as f32).collect();
        a.residual.store_row(io, bind::X, row, &x);
    }
}
