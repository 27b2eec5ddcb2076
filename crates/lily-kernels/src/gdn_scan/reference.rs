//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::gdn;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let d = a.gdn;
    let (control, ring) = (io.i32(bind::CONTROL), io.f32(bind::STATE));
    let (gq, gk, gv) = (io.f32(bind::GQ), io.f32(bind::GK), io.f32(bind::GV));
    let (beta, log_decay) = (io.f32(bind::BETA), io.f32(bind::LOG_DECAY));
    let (k_heads, v_heads) = (d.k_heads as usize, d.v_heads as usize);
    let (k_dim, v_dim) = (d.k_dim as usize, d.v_dim as usize);
    let rows = a.step.live_rows(&control);
    let Some(last) = rows.last() else { return };
    let (sequence, position) = (a.step.sequence as usize, a.step.position_of(&control, 0));
    for h in 0..v_heads {
        let mut state = match position {
            0 => vec![0.0; v_dim * k_dim],
            _ => ring[d.state(sequence, position, h)].to_vec(),
        };
        for row in rows.iter() {
            let key = (row * k_heads + d.key_head(h)) * k_dim;
            let head = row * v_heads + h;
            let (q, k) = (&gq[key..key + k_dim], &gk[key..key + k_dim]);
            let v = &gv[head * v_dim..(head + 1) * v_dim];
            let o = gdn::delta_token(&mut state, q, k, v, log_decay[head], beta[head]);
            io.store(bind::CORE, head * v_dim, o);
            if a.every_token != 0 || row == last {
                let slot = d.state(sequence, position + row + 1, h).start;
                io.store(bind::STATE, slot, state.as_slice());
            }
        }
    }
    let kept = rows.len().saturating_sub(a.kept_columns as usize)..rows.len();
    gdn::store_columns(io, &d, (bind::QKV, bind::CONV), sequence, position, kept);
}
