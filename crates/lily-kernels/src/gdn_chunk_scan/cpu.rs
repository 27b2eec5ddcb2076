//! CPU face: a tile is a block of value rows of one head, from the first chunk to the last. The last
//! tile fills the convolution ring.
//!
//! The block of the state is held transposed, `[k_dim, rows]`, so that every product of the chunk is a
//! sum of consecutive value rows, and state, R and the outputs stay in the nearest cache.

use std::ops::Range;

use super::{Args, bind};
use crate::cpu::panel::{Panel, multiply_add};
use crate::cpu::{CpuLaunch, Scratch};
use crate::gdn::cpu::{ScanTiles, StateRows};
use crate::shape::CHUNK;

/// Value rows of one tile: 16 KB of state at the real model's size.
const TILE_ROWS: usize = 32;
/// Tokens whose part of P R is formed together; P is lower triangular, later columns are skipped.
const BLOCK: usize = 12;

fn scan_tiles<'a>(l: &CpuLaunch<'_>, a: &'a Args) -> ScanTiles<'a> {
    ScanTiles::new(&a.step, &a.gdn, l.control(bind::CONTROL), TILE_ROWS)
}

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    scan_tiles(l, &l.args()).count()
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (d, k_dim) = (a.gdn, a.gdn.k_dim as usize);
    let scan = scan_tiles(l, &a);
    let Some(place) = scan.nth(tile) else {
        // SAFETY: the launch only reads `qkv`; no other tile touches the ring.
        unsafe { scan.store_columns(l.f32(bind::QKV), l.f32(bind::CONV), a.kept_columns) };
        return;
    };
    let (position, tokens) = (scan.position, scan.tokens);
    let n = place.rows.len();
    let Scratch { floats: state, more, .. } = scratch;
    state.clear();
    state.resize(k_dim * n, 0.0);
    if position > 0 {
        // SAFETY: these rows belong to this tile in every slot; nothing writes them now.
        let old = unsafe { l.f32(bind::STATE).read(place.elements(&d, position)) };
        for (v, row) in old.chunks(k_dim).enumerate() {
            for (i, &s) in row.iter().enumerate() {
                state[i * n + v] = s;
            }
        }
    }
    for start in (0..tokens).step_by(CHUNK) {
        let chunk = start..tokens.min(start + CHUNK);
        run_chunk(l, &a, chunk, &place, state, more);
    }
    // SAFETY: these rows belong to this tile in every slot; the slice of the old ones is dead.
    let new = unsafe { l.f32(bind::STATE).write(place.elements(&d, position + tokens)) };
    for (v, row) in new.chunks_mut(k_dim).enumerate() {
        for (i, s) in row.iter_mut().enumerate() {
            *s = state[i * n + v];
        }
    }
}

/// One chunk: writes the rows of the head's outputs and takes `state`, `[k_dim, rows]`, over it.
fn run_chunk(
    l: &CpuLaunch<'_>,
    a: &Args,
    chunk: Range<usize>,
    place: &StateRows,
    state: &mut [f32],
    floats: &mut Vec<f32>,
) {
    let (d, rows, v_head) = (&a.gdn, &place.rows, place.v_head);
    let (k_heads, v_heads) = (d.k_heads as usize, d.v_heads as usize);
    let (k_dim, v_dim, n) = (d.k_dim as usize, d.v_dim as usize, rows.len());
    let (tokens, head) = (chunk.len(), chunk.start * v_heads + v_head);
    let key = (chunk.start * k_heads + d.key_head(v_head)) * k_dim;
    let (key_stride, w_stride, p_stride) = (k_heads * k_dim, v_heads * k_dim, v_heads * CHUNK);
    let span = |first: usize, stride: usize, n: usize| first..first + (tokens - 1) * stride + n;
    // SAFETY: the launch only reads these.
    let (q, k, w, g, p) = unsafe {
        (
            l.f32(bind::GQ).read(span(key, key_stride, k_dim)),
            l.f32(bind::GK).read(span(key, key_stride, k_dim)),
            l.f32(bind::CHUNK_W).read(span(head * k_dim, w_stride, k_dim)),
            l.f32(bind::CHUNK_G).read(span(head, v_heads, 1)),
            l.f32(bind::CHUNK_P).read(span(head * CHUNK, p_stride, tokens)),
        )
    };
    let values = |t: usize| {
        let first = (head + t * v_heads) * v_dim;
        first + rows.start..first + rows.end
    };
    floats.clear();
    floats.resize(CHUNK * (2 * n + k_dim), 0.0);
    let (r, rest) = floats.split_at_mut(CHUNK * n);
    let (outputs, keys) = rest.split_at_mut(CHUNK * n);
    let (mut decay, mut left) = ([0.0; CHUNK], [0.0; CHUNK]);
    let end = g[(tokens - 1) * v_heads];
    for (t, &g) in g.iter().step_by(v_heads).enumerate() {
        (decay[t], left[t]) = (g, end - g);
    }
    l.simd.exp(&mut decay[..tokens]);
    l.simd.exp(&mut left[..tokens]);
    multiply_add(l.simd, (tokens, k_dim, n), Panel::rows(w, w_stride), (state, n), (r, n));
    multiply_add(l.simd, (tokens, k_dim, n), Panel::rows(q, key_stride), (state, n), (outputs, n));
    for (t, r) in r.chunks_mut(n).take(tokens).enumerate() {
        // SAFETY: the launch only reads U.
        let u = unsafe { l.f32(bind::CHUNK_U).read(values(t)) };
        r.iter_mut().zip(u).for_each(|(r, u)| *r = u - *r);
        l.simd.scale(decay[t], &mut outputs[t * n..(t + 1) * n]);
    }
    for from in (0..tokens).step_by(BLOCK) {
        let to = tokens.min(from + BLOCK);
        let p = Panel::rows(&p[from * p_stride..], p_stride);
        multiply_add(l.simd, (to - from, to, n), p, (r, n), (&mut outputs[from * n..], n));
    }
    for (t, outputs) in outputs.chunks(n).take(tokens).enumerate() {
        // SAFETY: these rows of the outputs belong to this tile.
        unsafe { l.f32(bind::CORE).write(values(t)).copy_from_slice(outputs) };
        l.simd.scale(left[t], &mut r[t * n..(t + 1) * n]);
        keys[t * k_dim..(t + 1) * k_dim].copy_from_slice(&k[t * key_stride..][..k_dim]);
    }
    l.simd.scale(decay[tokens - 1], state);
    multiply_add(l.simd, (k_dim, tokens, n), Panel::columns(keys, k_dim), (r, n), (state, n));
}
