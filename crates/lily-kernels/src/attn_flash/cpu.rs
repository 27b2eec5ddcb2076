//! CPU face: a tile is a few tokens of one KV head with all query heads of the group. Keys and values
//! come in pieces, widened once for all of them.

use half::bf16;

use super::{Args, bind};
use crate::attention::cpu::{Cache, CacheElement, OnlineSoftmax, PIECE, is_bf16};
use crate::cpu::{CpuLaunch, Scratch};
use crate::math::sigmoid;

/// Tokens of one tile: with 8 heads of 256 their queries and outputs take 128 KB, a piece of keys and
/// values 64 KB; all of it lies in the second-level cache.
const TILE_TOKENS: usize = 8;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    let live = a.step.live_rows(l.control(bind::CONTROL)).len();
    live.div_ceil(TILE_TOKENS) * a.kv_heads as usize
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
    let control = l.control(bind::CONTROL);
    let live = a.step.live_rows(control);
    // Later tokens see more keys: they come first, so that the last tiles to run are short.
    let token_tile = live.len().div_ceil(TILE_TOKENS) - 1 - tile / kv_heads;
    let tokens = live.part(TILE_TOKENS, token_tile);
    let first_head = tile % kv_heads * group;
    let cache = Cache {
        k: T::slice(l.operands[bind::K]),
        v: T::slice(l.operands[bind::V]),
        first: a.cache_at(a.step.sequence_of(tokens.nth(0)), tile % kv_heads),
        head_dim: dim,
    };
    let queries = tokens.len() * group;
    let heads_at = |row: usize| (row * a.q_heads as usize + first_head) * dim;

    let Scratch { floats, more, .. } = scratch;
    more.resize(queries * dim, 0.0);
    let q = &mut more[..queries * dim];
    for (q, row) in q.chunks_mut(group * dim).zip(tokens.iter()) {
        // SAFETY: the launch does not write the queries.
        q.copy_from_slice(unsafe {
            l.f32(bind::Q).read(heads_at(row)..heads_at(row) + group * dim)
        });
    }
    let mut softmax = OnlineSoftmax::start(l.simd, dim, queries, floats);
    let first_length = a.step.position_of(control, tokens.nth(0)) + 1;
    let end = first_length + tokens.len() - 1;
    for start in (0..end).step_by(PIECE) {
        let n = PIECE.min(end - start);
        // SAFETY: the launch does not write the cache.
        let (keys, values) = unsafe { cache.rows(start..start + n) };
        softmax
            .absorb(q, keys, values, |i| (first_length + i / group).saturating_sub(start).min(n));
    }
    for (t, row) in tokens.iter().enumerate() {
        let span = heads_at(row)..heads_at(row) + group * dim;
        // SAFETY: the gate is not written here; these heads of this token belong to this tile alone.
        let (gate, att) =
            unsafe { (l.f32(bind::GATE).read(span.clone()), l.f32(bind::ATT).write(span)) };
        let out = &softmax.out[t * group * dim..][..group * dim];
        for (i, (att, (o, g))) in att.iter_mut().zip(out.iter().zip(gate)).enumerate() {
            *att = o / softmax.sum[t * group + i / dim] * sigmoid(*g);
        }
    }
}
