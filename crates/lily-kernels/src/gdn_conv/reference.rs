//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::gdn;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let d = a.gdn;
    let (control, qkv, conv) = (io.i32(bind::CONTROL), io.f32(bind::QKV), io.f32(bind::CONV));
    let (ba, taps) = (io.f32(bind::BA), io.f32(bind::CONV1D));
    let (a_log, dt_bias) = (io.f32(bind::A_LOG), io.f32(bind::DT_BIAS));
    let (k_heads, v_heads) = (d.k_heads as usize, d.v_heads as usize);
    let (channels, sequence) = (d.conv_channels(), a.step.sequence as usize);
    for row in a.step.live_rows(&control).iter() {
        let start = a.step.position_of(&control, 0);
        let column = |p: usize| match p.checked_sub(start) {
            Some(row) => &qkv[row * channels..(row + 1) * channels],
            None => &conv[d.column(sequence, p)..][..channels],
        };
        let columns: Vec<_> = d.window(start + row).map(|p| p.map(column)).collect();
        for h in 0..k_heads {
            let (q, k) = gdn::query_key(&d, &columns, &taps, h);
            io.store(bind::GQ, (row * k_heads + h) * q.len(), q);
            io.store(bind::GK, (row * k_heads + h) * k.len(), k);
        }
        for h in 0..v_heads {
            let v = gdn::value(&d, &columns, &taps, h);
            io.store(bind::GV, (row * v_heads + h) * v.len(), v);
        }
        let (b, a) = ba[row * 2 * v_heads..(row + 1) * 2 * v_heads].split_at(v_heads);
        let beta: Vec<f32> = b.iter().map(|&b| gdn::beta(b)).collect();
        let decay = |h: usize| gdn::log_decay(a[h], a_log[h], dt_bias[h]);
        let decay: Vec<f32> = (0..v_heads).map(decay).collect();
        io.store(bind::BETA, row * v_heads, beta);
        io.store(bind::LOG_DECAY, row * v_heads, decay);
    }
}
