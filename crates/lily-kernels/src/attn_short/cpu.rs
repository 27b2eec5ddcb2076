//! CPU face: a tile is one KV head of one sequence with all query heads of the group.

use half::bf16;

use super::{Args, bind};
use crate::attention::cpu::{CacheElement, OnlineSoftmax, Token, is_bf16};
use crate::cpu::{CpuLaunch, Scratch};
use crate::math::sigmoid;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    a.step.live_rows(l.control(bind::CONTROL)).len() * a.prepared.kv_heads as usize
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
    let kv_heads = a.prepared.kv_heads as usize;
    let control = l.control(bind::CONTROL);
    let (row, kv_head) = (a.step.live_rows(control).nth(tile / kv_heads), tile % kv_heads);
    let token = Token { row, kv_head, position: a.step.position_of(control, row) };
    let cache = a.prepared.cache::<T>(l, row, kv_head);
    let Scratch { floats, more, .. } = scratch;
    more.resize(group * dim + dim + a.prepared.rotary.rotary_dim as usize, 0.0);
    let (queries, work) = more.split_at_mut(group * dim);
    // SAFETY: this KV head of this sequence belongs to this tile alone.
    unsafe { a.prepared.prepare_on_cpu(l, token, Some(&cache), queries, work) };
    let mut softmax = OnlineSoftmax::start(l.simd, dim, group, floats);
    // SAFETY: as above.
    unsafe { softmax.absorb_range(queries, &cache, 0..token.position + 1) };
    let first = (row * a.prepared.q_heads as usize + kv_head * group) * dim;
    let span = first..first + group * dim;
    // SAFETY: the gate is not written here; these heads belong to this tile alone.
    let (gate, att) =
        unsafe { (l.f32(bind::GATE).read(span.clone()), l.f32(bind::ATT).write(span)) };
    for (i, (att, (o, g))) in att.iter_mut().zip(softmax.out.iter().zip(gate)).enumerate() {
        *att = o / softmax.sum[i / dim] * sigmoid(*g);
    }
}
