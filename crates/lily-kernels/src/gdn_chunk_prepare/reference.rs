//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::math::dot;
use crate::shape::CHUNK;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let d = a.gdn;
    let (gq, gk, gv) = (io.f32(bind::GQ), io.f32(bind::GK), io.f32(bind::GV));
    let (beta, log_decay) = (io.f32(bind::BETA), io.f32(bind::LOG_DECAY));
    let (k_heads, v_heads) = (d.k_heads as usize, d.v_heads as usize);
    let (k_dim, v_dim) = (d.k_dim as usize, d.v_dim as usize);
    let rows: Vec<usize> = a.step.live_rows(&io.i32(bind::CONTROL)).iter().collect();
    for rows in rows.chunks(CHUNK) {
        for h in 0..v_heads {
            let head = |i: usize| rows[i] * v_heads + h;
            let key = |i: usize| (rows[i] * k_heads + d.key_head(h)) * k_dim;
            let q = |i: usize| &gq[key(i)..key(i) + k_dim];
            let k = |i: usize| &gk[key(i)..key(i) + k_dim];
            let decay = |i: usize| f64::from(log_decay[head(i)]);
            let g = |i: usize| (0..=i).map(decay).sum::<f64>();
            let damping = |i: usize, j: usize| (g(i) - g(j)).exp();
            let mut solved: Vec<Vec<f64>> = Vec::new();
            for i in 0..rows.len() {
                let strength = f64::from(beta[head(i)]);
                let v = gv[head(i) * v_dim..][..v_dim].iter().map(|v| strength * f64::from(*v));
                let w = k(i).iter().map(|k| strength * g(i).exp() * f64::from(*k));
                let mut row: Vec<f64> = v.chain(w).collect();
                for (j, earlier) in solved.iter().enumerate() {
                    let factor = strength * damping(i, j) * f64::from(dot(k(i), k(j)));
                    row.iter_mut().zip(earlier).for_each(|(x, e)| *x -= factor * e);
                }
                let p = |j: usize| if j > i { 0.0 } else { damping(i, j) as f32 * dot(q(i), k(j)) };
                let p: Vec<f32> = (0..rows.len()).map(p).collect();
                let narrow: Vec<f32> = row.iter().map(|&x| x as f32).collect();
                io.store(bind::CHUNK_U, head(i) * v_dim, &narrow[..v_dim]);
                io.store(bind::CHUNK_W, head(i) * k_dim, &narrow[v_dim..]);
                io.store(bind::CHUNK_G, head(i), [g(i) as f32]);
                io.store(bind::CHUNK_P, head(i) * CHUNK, p);
                solved.push(row);
            }
        }
    }
}
