//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::gdn;
use crate::math::{silu, sum_of_squares};
use crate::shape::O_SS_ROWS;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let d = a.gdn;
    let (control, conv, ring) = (io.i32(bind::CONTROL), io.f32(bind::CONV), io.f32(bind::STATE));
    let (z, ba, taps) = (io.f32(bind::Z), io.f32(bind::BA), io.f32(bind::CONV1D));
    let (a_log, dt_bias) = (io.f32(bind::A_LOG), io.f32(bind::DT_BIAS));
    let norm = io.f32(bind::NORM);
    let (heads, v_dim) = (d.v_heads as usize, d.v_dim as usize);
    for row in a.step.live_rows(&control).iter() {
        let position = a.step.position_of(&control, row);
        let column = |p: usize| &conv[d.column(row, p)..][..d.conv_channels()];
        let columns: Vec<_> = d.window(position).map(|p| p.map(column)).collect();
        for h in 0..heads {
            let (q, k) = gdn::query_key(&d, &columns, &taps, d.key_head(h));
            let v = gdn::value(&d, &columns, &taps, h);
            let gates = &ba[row * 2 * heads..(row + 1) * 2 * heads];
            let decay = gdn::log_decay(gates[heads + h], a_log[h], dt_bias[h]);
            let mut state = match position {
                0 => vec![0.0; q.len() * v_dim],
                _ => ring[d.state(row, position, h)].to_vec(),
            };
            let o = gdn::delta_token(&mut state, &q, &k, &v, decay, gdn::beta(gates[h]));
            let first = (row * heads + h) * v_dim;
            let gated = o.iter().zip(norm.iter()).zip(&z[first..]);
            let og: Vec<f32> = gated.map(|((o, w), z)| o * w * silu(*z)).collect();
            let ss: Vec<f32> = o.chunks(O_SS_ROWS).map(sum_of_squares).collect();
            io.store(bind::STATE, d.state(row, position + 1, h).start, state);
            io.store(bind::OG, first, og);
            io.store(bind::O_SS, (row * heads + h) * a.o_ss_slices as usize, ss);
        }
    }
}
