//! CPU face: a tile is one block of one KV head of one sequence, for all query heads of the group,
//! so that each key and value is read from memory once.

use half::bf16;

use super::{Args, bind};
use crate::attention::block_keys;
use crate::attention::cpu::{
    Cache, CacheElement, OnlineSoftmax, block_place, blocks_in_use, is_bf16,
};
use crate::cpu::{CpuLaunch, Scratch};

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    let control = l.control(bind::CONTROL);
    blocks_in_use(&a.step, control, a.splits as usize) * a.kv_heads as usize
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    match is_bf16(l, bind::K) {
        true => run_for::<bf16>(l, tile, scratch),
        false => run_for::<f32>(l, tile, scratch),
    }
}

fn run_for<T: CacheElement>(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (dim, group, kv_heads) = (a.head_dim as usize, a.group(), a.kv_heads as usize);
    let (kv_head, first_head) = (tile % kv_heads, tile % kv_heads * group);
    let splits = a.splits as usize;
    let (row, length, block) =
        block_place(&a.step, l.control(bind::CONTROL), splits, tile / kv_heads);
    let query = (row * a.q_heads as usize + first_head) * dim;
    // SAFETY: the launch does not write the queries.
    let queries = unsafe { l.f32(bind::Q).read(query..query + group * dim) };
    let cache = Cache {
        k: T::slice(l.operands[bind::K]),
        v: T::slice(l.operands[bind::V]),
        first: a.cache_at(a.step.sequence_of(row), kv_head),
        head_dim: dim,
    };
    let size = block_keys(length, splits);
    let mut softmax = OnlineSoftmax::start(l.simd, dim, group, &mut scratch.floats);
    // SAFETY: the launch does not write the cache.
    unsafe { softmax.absorb_range(queries, &cache, block * size..length.min((block + 1) * size)) };
    for (i, out) in softmax.out.chunks(dim).enumerate() {
        let at = a.part_at(row, first_head + i, block);
        // SAFETY: this block of these heads belongs to this tile alone.
        unsafe {
            l.f32(bind::PART_O).write(at * dim..(at + 1) * dim).copy_from_slice(out);
            let ml = [softmax.max[i], softmax.sum[i]];
            l.f32(bind::PART_ML).write(2 * at..2 * at + 2).copy_from_slice(&ml);
        }
    }
}
