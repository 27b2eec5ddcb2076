//! CPU face: all heads of a few tokens, so that the angles of a position are computed once.

use half::bf16;

use super::{Args, bind};
use crate::attention::cpu::{CacheElement, Rotary, is_bf16};
use crate::cpu::{CpuLaunch, Scratch};

/// Tokens of one tile: about ten microseconds each at the real size.
const TILE_TOKENS: usize = 4;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    a.step.live_rows(l.control(bind::CONTROL)).len().div_ceil(TILE_TOKENS)
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    match is_bf16(l, bind::K) {
        true => run_for::<bf16>(l, tile, scratch),
        false => run_for::<f32>(l, tile, scratch),
    }
}

fn run_for<T: CacheElement>(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let control = l.control(bind::CONTROL);
    let (dim, rotary) = (a.rotary.head_dim as usize, Rotary::new(a.rotary));
    let (k, v) = (T::slice(l.operands[bind::K]), T::slice(l.operands[bind::V]));
    // SAFETY: the norms are weights, never written.
    let (q_norm, k_norm) =
        unsafe { (l.f32(bind::Q_NORM).read(0..dim), l.f32(bind::K_NORM).read(0..dim)) };
    let tokens = a.step.live_rows(control).part(TILE_TOKENS, tile);
    let Scratch { floats: tables, more, .. } = scratch;
    let table_size = a.rotary.rotary_dim as usize;
    tables.resize(TILE_TOKENS * table_size, 0.0);
    rotary.tables(tokens.iter().map(|row| a.step.position_of(control, row)), tables);
    more.resize(dim, 0.0);
    for (t, row) in tokens.iter().enumerate() {
        let table = &tables[t * table_size..(t + 1) * table_size];
        let (sequence, position) = (a.step.sequence_of(row), a.step.position_of(control, row));
        for head in 0..a.q_heads as usize {
            let at = (row * a.q_heads as usize + head) * dim;
            // SAFETY: `aq` is not written here; this head of this token belongs to this tile alone.
            let (x, q) =
                unsafe { (l.f32(bind::AQ).read(at..at + dim), l.f32(bind::Q).write(at..at + dim)) };
            rotary.apply(l.simd, x, q_norm, table, q);
        }
        for head in 0..a.kv_heads as usize {
            let from = (row * a.kv_heads as usize + head) * dim;
            let to = a.cache_at(sequence, head, position);
            // SAFETY: the projections are not written here; the cache row of this position belongs
            // to this tile alone.
            let (ak, av, k, v) = unsafe {
                (
                    l.f32(bind::AK).read(from..from + dim),
                    l.f32(bind::AV).read(from..from + dim),
                    k.write(to..to + dim),
                    v.write(to..to + dim),
                )
            };
            rotary.apply(l.simd, ak, k_norm, table, &mut more[..dim]);
            k.iter_mut().zip(more.iter()).for_each(|(to, &from)| *to = T::from_f32(from));
            v.iter_mut().zip(av).for_each(|(to, &from)| *to = T::from_f32(from));
        }
    }
}
