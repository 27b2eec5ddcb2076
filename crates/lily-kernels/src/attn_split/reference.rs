//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::attention::{attend, block_keys};

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let control = io.i32(bind::CONTROL);
    let (q, k, v) = (io.f32(bind::Q), io.f32(bind::K), io.f32(bind::V));
    let dim = a.head_dim as usize;
    for row in a.step.live_rows(&control).iter() {
        let length = a.step.position_of(&control, row) + 1;
        let size = block_keys(length, a.splits as usize);
        for head in 0..a.q_heads as usize {
            let query = &q[(row * a.q_heads as usize + head) * dim..][..dim];
            let cache = a.cache_at(a.step.sequence_of(row), head / a.group());
            for (block, start) in (0..length).step_by(size).enumerate() {
                let end = length.min(start + size);
                let keys = cache + start * dim..cache + end * dim;
                let (o, max, sum) = attend(query, &k[keys.clone()], &v[keys]);
                let at = a.part_at(row, head, block);
                io.store(bind::PART_O, at * dim, o);
                io.store(bind::PART_ML, at * 2, [max, sum]);
            }
        }
    }
}
