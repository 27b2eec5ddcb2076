//! CPU face: one value head of one sequence is a tile. Its state is read once and written once.

use std::ops::Range;

use super::{Args, bind};
use crate::cpu::delta::DeltaToken;
use crate::cpu::{CpuLaunch, Scratch};
use crate::gdn::cpu::{Part, StateRows, convolve, finish, turn_taps};
use crate::gdn::{self, GdnArgs};
use crate::shape::O_SS_ROWS;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    a.step.live_rows(l.control(bind::CONTROL)).len() * a.gdn.v_heads as usize
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let d = a.gdn;
    let (heads, v_dim, k_dim) = (d.v_heads as usize, d.v_dim as usize, d.k_dim as usize);
    let control = l.control(bind::CONTROL);
    let (row, h) = (a.step.live_rows(control).nth(tile / heads), tile % heads);
    let position = a.step.position_of(control, row);
    let Scratch { floats, more, .. } = scratch;
    floats.clear();
    floats.resize(2 * k_dim + 3 * v_dim, 0.0);
    let (q, rest) = floats.split_at_mut(k_dim);
    let (k, rest) = rest.split_at_mut(k_dim);
    let (v, rest) = rest.split_at_mut(v_dim);
    let (o, gate) = rest.split_at_mut(v_dim);
    let outs = [(Part::Query, &mut *q), (Part::Key, &mut *k), (Part::Value, &mut *v)];
    for (channels, (part, out)) in channels(&d, h).into_iter().zip(outs) {
        convolve_in_ring(l, &d, (row, position), channels, out, more);
        finish(l.simd, &d, part, out);
    }
    if h + 1 < heads {
        // The next tile, while this one goes through its state.
        ask_for_channels(l, &d, (row, position), h + 1);
    }
    // SAFETY: the launch only reads `ba`, the gate weights, `norm` and `z`.
    let (ba, a_log, dt_bias, norm, z) = unsafe {
        (
            l.f32(bind::BA).read(row * 2 * heads..(row + 1) * 2 * heads),
            l.f32(bind::A_LOG).read(h..h + 1)[0],
            l.f32(bind::DT_BIAS).read(h..h + 1)[0],
            l.f32(bind::NORM).read(0..v_dim),
            l.f32(bind::Z).read((row * heads + h) * v_dim..(row * heads + h + 1) * v_dim),
        )
    };
    let decay = gdn::log_decay(ba[heads + h], a_log, dt_bias);
    let token = DeltaToken::new(l.simd, q, k, decay, gdn::beta(ba[h]));
    let rows = StateRows { sequence: row, v_head: h, rows: 0..v_dim };
    let state = l.f32(bind::STATE);
    // SAFETY: the state of this head of this sequence belongs to this tile, in every slot.
    unsafe { rows.step(l.simd, state, &d, (position, position + 1), &token, v, o) };
    gate.copy_from_slice(z);
    l.simd.silu(gate);
    let (slices, head) = (a.o_ss_slices as usize, row * heads + h);
    // SAFETY: this head of this row belongs to this tile.
    let (og, o_ss) = unsafe {
        (
            l.f32(bind::OG).write(head * v_dim..(head + 1) * v_dim),
            l.f32(bind::O_SS).write(head * slices..(head + 1) * slices),
        )
    };
    for (i, og) in og.iter_mut().enumerate() {
        *og = o[i] * norm[i] * gate[i];
    }
    for (ss, o) in o_ss.iter_mut().zip(o.chunks(O_SS_ROWS)) {
        *ss = o.iter().map(|o| o * o).sum();
    }
}

/// Channels of a value head's query, key and value.
fn channels(d: &GdnArgs, h: usize) -> [Range<usize>; 3] {
    let key_head = d.key_head(h);
    [d.q_channels(key_head), d.k_channels(key_head), d.v_channels(h)]
}

/// Asks for all that the convolution of a head reads: pieces too short for the processor to see that
/// they go on.
fn ask_for_channels(l: &CpuLaunch<'_>, d: &GdnArgs, (row, position): (usize, usize), h: usize) {
    let (taps, ring, width) = (l.f32(bind::CONV1D), l.f32(bind::CONV), d.conv_width as usize);
    for channels in channels(d, h) {
        // SAFETY: the launch only reads the taps and the ring's columns.
        l.simd.ask(unsafe { taps.read(width * channels.start..width * channels.end) });
        for position in d.window(position).flatten() {
            let first = d.column(row, position);
            // SAFETY: as above.
            l.simd.ask(unsafe { ring.read(first + channels.start..first + channels.end) });
        }
    }
}

/// Convolution and SiLU of some channels of one sequence, from the ring alone.
fn convolve_in_ring(
    l: &CpuLaunch<'_>,
    d: &GdnArgs,
    (row, position): (usize, usize),
    channels: Range<usize>,
    out: &mut [f32],
    turned: &mut Vec<f32>,
) {
    let taps = l.f32(bind::CONV1D);
    // SAFETY: the launch only reads the taps and the ring's columns.
    let (taps, ring) = unsafe { (taps.read(0..taps.len()), l.f32(bind::CONV)) };
    turn_taps(d, taps, channels.clone(), turned);
    let columns = d.window(position).map(|p| {
        let first = d.column(row, p?);
        // SAFETY: as above.
        Some(unsafe { ring.read(first + channels.start..first + channels.end) })
    });
    convolve(l.simd, columns, turned, out);
}
