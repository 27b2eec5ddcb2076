//! CPU face: a tile is one block of one KV head of one sequence, for all query heads of the group,
//! so that each key and value is read from memory once.

use half::bf16;

use super::{Args, bind};
use crate::attention::cpu::{CacheElement, OnlineSoftmax, PIECE, is_bf16};
use crate::attention::{block_keys, blocks};
use crate::cpu::{CpuLaunch, Scratch};

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    let control = l.control(bind::CONTROL);
    let used = |row| blocks(a.step.position_of(control, row) + 1, a.splits as usize);
    let blocks: usize = a.step.live_rows(control).into_iter().map(used).sum();
    blocks * a.kv_heads as usize
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    match is_bf16(l, bind::K) {
        true => run_for::<bf16>(l, tile, scratch),
        false => run_for::<f32>(l, tile, scratch),
    }
}

/// Row, number of keys and block of the `index`-th block in use.
fn place(a: &Args, control: &[i32], mut index: usize) -> (usize, usize, usize) {
    for row in a.step.live_rows(control) {
        let length = a.step.position_of(control, row) + 1;
        let used = blocks(length, a.splits as usize);
        if index < used {
            return (row, length, index);
        }
        index -= used;
    }
    panic!("attn_split has no such tile; the control block changed while it ran");
}

fn run_for<T: CacheElement>(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (dim, group, kv_heads) = (a.head_dim as usize, a.group(), a.kv_heads as usize);
    let (row, length, block) = place(&a, l.control(bind::CONTROL), tile / kv_heads);
    let (kv_head, first_head) = (tile % kv_heads, tile % kv_heads * group);
    let size = block_keys(length, a.splits as usize);
    let cache = a.cache_at(a.step.sequence_of(row), kv_head);
    let query = (row * a.q_heads as usize + first_head) * dim;
    // SAFETY: the launch does not write the queries.
    let queries = unsafe { l.f32(bind::Q).read(query..query + group * dim) };
    let floats = &mut scratch.floats;
    floats.resize(group * (dim + PIECE + 2), 0.0);
    let (out, rest) = floats.split_at_mut(group * dim);
    let (scores, rest) = rest.split_at_mut(group * PIECE);
    let (max, sum) = rest[..2 * group].split_at_mut(group);
    let mut softmax = OnlineSoftmax { simd: l.simd, head_dim: dim, max, sum, out, scores };
    softmax.start();
    let end = length.min((block + 1) * size);
    for start in (block * size..end).step_by(PIECE) {
        let n = PIECE.min(end - start);
        let keys = cache + start * dim..cache + (start + n) * dim;
        // SAFETY: the launch does not write the cache.
        let (k, v) = unsafe {
            (
                T::slice(l.operands[bind::K]).read(keys.clone()),
                T::slice(l.operands[bind::V]).read(keys),
            )
        };
        softmax.absorb(queries, k, v, |_| n);
    }
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
