//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::attention::attend;
use crate::math::sigmoid;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, gate) = (io.i32(bind::CONTROL), io.f32(bind::GATE));
    let (dim, group) = (a.prepared.head_dim(), a.prepared.group());
    for row in a.step.live_rows(&control).iter() {
        let position = a.step.position_of(&control, row);
        for kv_head in 0..a.prepared.kv_heads as usize {
            let (queries, keys, values) = a.prepared.prepare(io, row, kv_head, position);
            for (i, query) in queries.chunks(dim).enumerate() {
                let (o, _, sum) = attend(query, &keys, &values);
                let at = (row * a.prepared.q_heads as usize + kv_head * group + i) * dim;
                let gated = o.iter().zip(&gate[at..at + dim]).map(|(o, g)| o / sum * sigmoid(*g));
                io.store(bind::ATT, at, gated.collect::<Vec<f32>>());
            }
        }
    }
}
