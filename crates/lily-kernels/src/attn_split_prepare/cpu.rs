//! CPU face: as `attn_split`, with the queries prepared by each tile.

use half::bf16;

use super::{Args, bind};
use crate::attention::block_keys;
use crate::attention::cpu::{
    CacheElement, OnlineSoftmax, Token, block_place, blocks_in_use, is_bf16,
};
use crate::cpu::{CpuLaunch, Scratch};

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    let control = l.control(bind::CONTROL);
    blocks_in_use(&a.step, control, a.splits as usize) * a.prepared.kv_heads as usize
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    match is_bf16(l, bind::K) {
        true => run_for::<bf16>(l, tile, scratch),
        false => run_for::<f32>(l, tile, scratch),
    }
}

fn run_for<T: CacheElement>(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (dim, group) = (a.prepared.head_dim(), a.prepared.group());
    let (kv_heads, splits) = (a.prepared.kv_heads as usize, a.splits as usize);
    let (row, length, block) =
        block_place(&a.step, l.control(bind::CONTROL), splits, tile / kv_heads);
    let token = Token { row, kv_head: tile % kv_heads, position: length - 1 };
    let size = block_keys(length, splits);
    let keys = block * size..length.min((block + 1) * size);
    let cache = a.prepared.cache::<T>(l, row, token.kv_head);
    let Scratch { floats, more, .. } = scratch;
    more.resize(group * dim + dim + a.prepared.rotary.rotary_dim as usize, 0.0);
    let (queries, work) = more.split_at_mut(group * dim);
    let owns_row = keys.contains(&token.position).then_some(&cache);
    // SAFETY: the block of this tile alone holds the new position.
    unsafe { a.prepared.prepare_on_cpu(l, token, owns_row, queries, work) };
    let mut softmax = OnlineSoftmax::start(l.simd, dim, group, floats);
    // SAFETY: the only row that the launch writes is in this block only if this tile wrote it.
    unsafe { softmax.absorb_range(queries, &cache, keys) };
    for (i, out) in softmax.out.chunks(dim).enumerate() {
        let at = a.part_at(row, token.kv_head * group + i, block);
        // SAFETY: this block of these heads belongs to this tile alone.
        unsafe {
            l.f32(bind::PART_O).write(at * dim..(at + 1) * dim).copy_from_slice(out);
            let ml = [softmax.max[i], softmax.sum[i]];
            l.f32(bind::PART_ML).write(2 * at..2 * at + 2).copy_from_slice(&ml);
        }
    }
}
