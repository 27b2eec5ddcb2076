//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::gdn;
use crate::math::dot;
use crate::shape::CHUNK;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let d = a.gdn;
    let (control, ring) = (io.i32(bind::CONTROL), io.f32(bind::STATE));
    let (gq, gk, p) = (io.f32(bind::GQ), io.f32(bind::GK), io.f32(bind::CHUNK_P));
    let (u, w, g) = (io.f32(bind::CHUNK_U), io.f32(bind::CHUNK_W), io.f32(bind::CHUNK_G));
    let (k_heads, v_heads) = (d.k_heads as usize, d.v_heads as usize);
    let (k_dim, v_dim) = (d.k_dim as usize, d.v_dim as usize);
    let rows: Vec<usize> = a.step.live_rows(&control).iter().collect();
    if rows.is_empty() {
        return;
    }
    let (sequence, position) = (a.step.sequence as usize, a.step.position_of(&control, 0));
    for h in 0..v_heads {
        let mut state = match position {
            0 => vec![0.0; v_dim * k_dim],
            _ => ring[d.state(sequence, position, h)].to_vec(),
        };
        for chunk in rows.chunks(CHUNK) {
            let head = |row: usize| row * v_heads + h;
            let key = |row: usize| (row * k_heads + d.key_head(h)) * k_dim;
            let end = g[head(chunk[chunk.len() - 1])];
            let mut outputs = vec![vec![0.0; v_dim]; chunk.len()];
            for (v, state) in state.chunks_mut(k_dim).enumerate() {
                let r = |&row: &usize| {
                    u[head(row) * v_dim + v] - dot(&w[head(row) * k_dim..][..k_dim], state)
                };
                let r: Vec<f32> = chunk.iter().map(r).collect();
                for (i, &row) in chunk.iter().enumerate() {
                    let from_state = g[head(row)].exp() * dot(&gq[key(row)..][..k_dim], state);
                    let p = &p[head(row) * CHUNK..][..=i];
                    outputs[i][v] = from_state + dot(p, &r[..=i]);
                }
                let weight = |(r, &row): (&f32, &usize)| (end - g[head(row)]).exp() * r;
                let weights: Vec<f32> = r.iter().zip(chunk).map(weight).collect();
                for (i, s) in state.iter_mut().enumerate() {
                    let update = |(&w, &row): (&f32, &usize)| f64::from(w * gk[key(row) + i]);
                    *s = end.exp() * *s + weights.iter().zip(chunk).map(update).sum::<f64>() as f32;
                }
            }
            for (&row, output) in chunk.iter().zip(outputs) {
                io.store(bind::CORE, head(row) * v_dim, output);
            }
        }
        io.store(bind::STATE, d.state(sequence, position + rows.len(), h).start, state);
    }
    let kept = rows.len().saturating_sub(a.kept_columns as usize)..rows.len();
    gdn::store_columns(io, &d, (bind::QKV, bind::CONV), sequence, position, kept);
}
