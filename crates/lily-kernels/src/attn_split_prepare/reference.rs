//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::attention::{attend, block_keys};

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let control = io.i32(bind::CONTROL);
    let (dim, group) = (a.prepared.head_dim(), a.prepared.group());
    for row in a.step.live_rows(&control).iter() {
        let position = a.step.position_of(&control, row);
        let size = block_keys(position + 1, a.splits as usize);
        for kv_head in 0..a.prepared.kv_heads as usize {
            let (queries, keys, values) = a.prepared.prepare(io, row, kv_head, position);
            for (i, query) in queries.chunks(dim).enumerate() {
                let pieces = keys.chunks(size * dim).zip(values.chunks(size * dim));
                for (block, (keys, values)) in pieces.enumerate() {
                    let (o, max, sum) = attend(query, keys, values);
                    let at = a.part_at(row, kv_head * group + i, block);
                    io.store(bind::PART_O, at * dim, o);
                    io.store(bind::PART_ML, at * 2, [max, sum]);
                }
            }
        }
    }
}
