//! CPU face: a tile is one chunk of the value heads that share a key head.

use std::ops::Range;

use super::{Args, bind};
use crate::cpu::panel::{Panel, multiply_add};
use crate::cpu::{CpuLaunch, Scratch, part};
use crate::shape::CHUNK;

/// Rows solved together: earlier rows are subtracted as one product, those of the block one by one.
const BLOCK: usize = 12;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    a.step.live_rows(l.control(bind::CONTROL)).len().div_ceil(CHUNK) * a.gdn.k_heads as usize
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (k_heads, v_heads) = (a.gdn.k_heads as usize, a.gdn.v_heads as usize);
    let live = a.step.live_rows(l.control(bind::CONTROL)).len();
    let (rows, key_head) = (part(live, CHUNK, tile / k_heads), tile % k_heads);
    let Scratch { floats, more, .. } = scratch;
    products(l, &a, rows.clone(), key_head, floats);
    let (kk, qk) = floats.split_at(CHUNK * CHUNK);
    let group = v_heads / k_heads;
    for h in key_head * group..(key_head + 1) * group {
        solve(l, &a, rows.clone(), h, (kk, qk), more);
    }
}

/// `K Kᵀ`, then `Q Kᵀ`, each `[CHUNK, CHUNK]`; only the lower triangles count.
fn products(
    l: &CpuLaunch<'_>,
    a: &Args,
    rows: Range<usize>,
    key_head: usize,
    floats: &mut Vec<f32>,
) {
    let (k_dim, k_heads) = (a.gdn.k_dim as usize, a.gdn.k_heads as usize);
    let (n, stride) = (rows.len(), k_heads * k_dim);
    let first = (rows.start * k_heads + key_head) * k_dim;
    let span = first..first + (n - 1) * stride + k_dim;
    // SAFETY: the launch only reads queries and keys.
    let (q, k) = unsafe { (l.f32(bind::GQ).read(span.clone()), l.f32(bind::GK).read(span)) };
    floats.clear();
    floats.resize(CHUNK * (2 * CHUNK + k_dim), 0.0);
    let (out, turned) = floats.split_at_mut(2 * CHUNK * CHUNK);
    for (j, key) in k.chunks(stride).enumerate() {
        for (i, &value) in key[..k_dim].iter().enumerate() {
            turned[i * CHUNK + j] = value;
        }
    }
    for (out, left) in out.chunks_mut(CHUNK * CHUNK).zip([k, q]) {
        for from in (0..n).step_by(BLOCK) {
            let to = n.min(from + BLOCK);
            let size = (to - from, k_dim, to);
            let left = Panel::rows(&left[from * stride..], stride);
            multiply_add(l.simd, size, left, (turned, CHUNK), (&mut out[from * CHUNK..], CHUNK));
        }
    }
}

/// Everything of one value head.
fn solve(
    l: &CpuLaunch<'_>,
    a: &Args,
    rows: Range<usize>,
    h: usize,
    (kk, qk): (&[f32], &[f32]),
    floats: &mut Vec<f32>,
) {
    let (k_dim, v_dim) = (a.gdn.k_dim as usize, a.gdn.v_dim as usize);
    let (v_heads, width) = (a.gdn.v_heads as usize, k_dim + v_dim);
    let n = rows.len();
    let head = |i: usize| (rows.start + i) * v_heads + h;
    floats.clear();
    floats.resize(CHUNK * (width + CHUNK), 0.0);
    let (solved, minus_a) = floats.split_at_mut(CHUNK * width);
    let (mut g, mut damping) = ([0.0; CHUNK], [0.0; CHUNK]);
    let mut sum = 0.0;
    for i in 0..n {
        let key = ((rows.start + i) * a.gdn.k_heads as usize + a.gdn.key_head(h)) * k_dim;
        // SAFETY: the launch only reads these; this head's row of P and element of G belong to this
        // tile.
        let (k, v, beta, decay, p, g_out) = unsafe {
            (
                l.f32(bind::GK).read(key..key + k_dim),
                l.f32(bind::GV).read(head(i) * v_dim..(head(i) + 1) * v_dim),
                l.f32(bind::BETA).read(head(i)..head(i) + 1)[0],
                l.f32(bind::LOG_DECAY).read(head(i)..head(i) + 1)[0],
                l.f32(bind::CHUNK_P).write(head(i) * CHUNK..head(i) * CHUNK + n),
                l.f32(bind::CHUNK_G).write(head(i)..head(i) + 1),
            )
        };
        sum += f64::from(decay);
        g[i] = sum;
        g_out[0] = sum as f32;
        for (damping, earlier) in damping.iter_mut().zip(&g[..=i]) {
            *damping = (sum - earlier) as f32;
        }
        l.simd.exp(&mut damping[..=i]);
        for j in 0..=i {
            p[j] = damping[j] * qk[i * CHUNK + j];
            minus_a[i * CHUNK + j] = -beta * damping[j] * kk[i * CHUNK + j];
        }
        p[i + 1..].fill(0.0);
        let (u, w) = solved[i * width..(i + 1) * width].split_at_mut(v_dim);
        let w_factor = beta * (sum as f32).exp();
        u.iter_mut().zip(v).for_each(|(u, v)| *u = beta * v);
        w.iter_mut().zip(k).for_each(|(w, k)| *w = w_factor * k);
    }
    substitute(l, n, width, minus_a, solved);
    for i in 0..n {
        let (u, w) = solved[i * width..(i + 1) * width].split_at(v_dim);
        // SAFETY: this head's rows of U and W belong to this tile.
        unsafe {
            l.f32(bind::CHUNK_U).write(head(i) * v_dim..(head(i) + 1) * v_dim).copy_from_slice(u);
            l.f32(bind::CHUNK_W).write(head(i) * k_dim..(head(i) + 1) * k_dim).copy_from_slice(w);
        }
    }
}

/// `x ← (I + A)⁻¹ x` for `x` `[n, width]`, from the strictly lower part of `-A`.
fn substitute(l: &CpuLaunch<'_>, n: usize, width: usize, minus_a: &[f32], x: &mut [f32]) {
    for from in (0..n).step_by(BLOCK) {
        let to = n.min(from + BLOCK);
        let (earlier, block) = x.split_at_mut(from * width);
        let factors = Panel::rows(&minus_a[from * CHUNK..], CHUNK);
        multiply_add(l.simd, (to - from, from, width), factors, (earlier, width), (block, width));
        for i in from + 1..to {
            let (above, row) = block.split_at_mut((i - from) * width);
            for (j, above) in above.chunks(width).enumerate() {
                l.simd.axpy(minus_a[i * CHUNK + from + j], above, &mut row[..width]);
            }
        }
    }
}
