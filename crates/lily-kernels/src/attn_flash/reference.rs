//! The oracle: every token alone, over all keys that it sees.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::attention::attend;
use crate::math::sigmoid;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, q, gate) = (io.i32(bind::CONTROL), io.f32(bind::Q), io.f32(bind::GATE));
    let (k, v) = (io.f32(bind::K), io.f32(bind::V));
    let dim = a.head_dim as usize;
    for row in a.step.live_rows(&control).iter() {
        let length = a.step.position_of(&control, row) + 1;
        for head in 0..a.q_heads as usize {
            let at = (row * a.q_heads as usize + head) * dim;
            let cache = a.cache_at(a.step.sequence_of(row), head / a.group());
            let keys = cache..cache + length * dim;
            let (o, _, sum) = attend(&q[at..at + dim], &k[keys.clone()], &v[keys]);
            let gated = o.iter().zip(&gate[at..at + dim]).map(|(o, g)| o / sum * sigmoid(*g));
            io.store(bind::ATT, at, gated.collect::<Vec<f32>>());
        }
    }
}
