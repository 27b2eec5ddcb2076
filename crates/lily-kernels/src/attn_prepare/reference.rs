//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let control = io.i32(bind::CONTROL);
    let (aq, ak, av) = (io.f32(bind::AQ), io.f32(bind::AK), io.f32(bind::AV));
    let (q_norm, k_norm) = (io.f32(bind::Q_NORM), io.f32(bind::K_NORM));
    let dim = a.rotary.head_dim as usize;
    for row in a.step.live_rows(&control).iter() {
        let (sequence, position) = (a.step.sequence_of(row), a.step.position_of(&control, row));
        for head in 0..a.q_heads as usize {
            let at = (row * a.q_heads as usize + head) * dim;
            io.store(bind::Q, at, a.rotary.norm_rotate(&aq[at..at + dim], &q_norm, position));
        }
        for head in 0..a.kv_heads as usize {
            let from = (row * a.kv_heads as usize + head) * dim;
            let to = a.cache_at(sequence, head, position);
            io.store(bind::K, to, a.rotary.norm_rotate(&ak[from..from + dim], &k_norm, position));
            io.store(bind::V, to, &av[from..from + dim]);
        }
    }
}
