//! CPU face: a tile is a block of tokens of a query and key head, or of a value head and its gates.

use std::ops::Range;

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Scratch, part};
use crate::gdn;
use crate::gdn::cpu::{Part, convolve, finish, turn_taps};

/// Tokens of one tile: they share the turned taps.
const TILE_TOKENS: usize = 32;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    let live = a.step.live_rows(l.control(bind::CONTROL)).len();
    live.div_ceil(TILE_TOKENS) * (a.gdn.k_heads + a.gdn.v_heads) as usize
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let d = a.gdn;
    let (k_heads, v_heads) = (d.k_heads as usize, d.v_heads as usize);
    let live = a.step.live_rows(l.control(bind::CONTROL)).len();
    let (block, head) = (tile / (k_heads + v_heads), tile % (k_heads + v_heads));
    let tokens = part(live, TILE_TOKENS, block);
    if head < k_heads {
        for (kind, channels, to) in
            [(Part::Query, d.q_channels(head), bind::GQ), (Part::Key, d.k_channels(head), bind::GK)]
        {
            convolve_tokens(l, &a, tokens.clone(), channels, (kind, to, k_heads, head), scratch);
        }
        return;
    }
    let head = head - k_heads;
    let place = (Part::Value, bind::GV, v_heads, head);
    convolve_tokens(l, &a, tokens.clone(), d.v_channels(head), place, scratch);
    for row in tokens {
        let at = row * v_heads + head;
        // SAFETY: the launch only reads `ba` and the gate weights; the gates of this head and row
        // belong to this tile.
        unsafe {
            let ba = l.f32(bind::BA).read(row * 2 * v_heads..(row + 1) * 2 * v_heads);
            let a_log = l.f32(bind::A_LOG).read(head..head + 1)[0];
            let dt_bias = l.f32(bind::DT_BIAS).read(head..head + 1)[0];
            l.f32(bind::BETA).write(at..at + 1)[0] = gdn::beta(ba[head]);
            l.f32(bind::LOG_DECAY).write(at..at + 1)[0] =
                gdn::log_decay(ba[v_heads + head], a_log, dt_bias);
        }
    }
}

/// Some tokens of one head's channels, into head `head` of `heads` of the buffer `to`.
fn convolve_tokens(
    l: &CpuLaunch<'_>,
    a: &Args,
    tokens: Range<usize>,
    channels: Range<usize>,
    (kind, to, heads, head): (Part, usize, usize, usize),
    scratch: &mut Scratch,
) {
    let (d, sequence) = (&a.gdn, a.step.sequence as usize);
    let start = a.step.position_of(l.control(bind::CONTROL), 0);
    let taps = l.f32(bind::CONV1D);
    // SAFETY: the launch only reads the taps.
    turn_taps(d, unsafe { taps.read(0..taps.len()) }, channels.clone(), &mut scratch.floats);
    let column = |p: usize| {
        let (buffer, first) = match p.checked_sub(start) {
            Some(row) => (bind::QKV, row * d.conv_channels()),
            None => (bind::CONV, d.column(sequence, p)),
        };
        // SAFETY: the launch only reads `qkv` and the ring.
        unsafe { l.f32(buffer).read(first + channels.start..first + channels.end) }
    };
    for row in tokens {
        let at = (row * heads + head) * channels.len();
        // SAFETY: this head of this row belongs to this tile.
        let out = unsafe { l.f32(to).write(at..at + channels.len()) };
        convolve(l.simd, d.window(start + row).map(|p| p.map(column)), &scratch.floats, out);
        finish(l.simd, d, kind, out);
    }
}
