//! CPU face: a tile is a block of value rows of one head; its state stays in the nearest caches over
//! all tokens. The last tile fills the convolution ring.

use super::{Args, bind};
use crate::cpu::delta::DeltaToken;
use crate::cpu::{CpuLaunch, Scratch, part};
use crate::gdn;
use crate::gdn::cpu::StateRows;

/// Value rows of one tile: half of the real model's head.
const TILE_ROWS: usize = 64;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    if a.step.live_rows(l.control(bind::CONTROL)).is_empty() {
        return 0;
    }
    a.gdn.v_heads as usize * (a.gdn.v_dim as usize).div_ceil(TILE_ROWS) + 1
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, _scratch: &mut Scratch) {
    let a: Args = l.args();
    let d = a.gdn;
    let (k_heads, v_heads) = (d.k_heads as usize, d.v_heads as usize);
    let (k_dim, v_dim) = (d.k_dim as usize, d.v_dim as usize);
    let control = l.control(bind::CONTROL);
    let tokens = a.step.live_rows(control).len();
    let (sequence, position) = (a.step.sequence as usize, a.step.position_of(control, 0));
    let blocks = v_dim.div_ceil(TILE_ROWS);
    if tile == v_heads * blocks {
        let kept = tokens.saturating_sub(a.kept_columns as usize)..tokens;
        let (qkv, ring) = (l.f32(bind::QKV), l.f32(bind::CONV));
        // SAFETY: the launch only reads `qkv`; no other tile touches the ring.
        unsafe { gdn::cpu::store_columns(qkv, ring, &d, sequence, position, kept) };
        return;
    }
    let (h, block) = (tile / blocks, part(v_dim, TILE_ROWS, tile % blocks));
    let rows = StateRows { sequence, v_head: h, rows: block.clone() };
    for row in 0..tokens {
        let (key, head) = ((row * k_heads + d.key_head(h)) * k_dim, row * v_heads + h);
        let span = head * v_dim + block.start..head * v_dim + block.end;
        // SAFETY: the launch only reads these; these rows of `core` belong to this tile.
        let (q, k, v, decay, beta, core) = unsafe {
            (
                l.f32(bind::GQ).read(key..key + k_dim),
                l.f32(bind::GK).read(key..key + k_dim),
                l.f32(bind::GV).read(span.clone()),
                l.f32(bind::LOG_DECAY).read(head..head + 1)[0],
                l.f32(bind::BETA).read(head..head + 1)[0],
                l.f32(bind::CORE).write(span),
            )
        };
        let token = DeltaToken::new(q, k, decay, beta);
        // Every state from slot to slot, or all in the slot of the last.
        let steps = match a.every_token {
            0 if row == 0 => (position, position + tokens),
            0 => (position + tokens, position + tokens),
            _ => (position + row, position + row + 1),
        };
        // SAFETY: these rows of the state belong to this tile, in every slot.
        unsafe { rows.step(l.f32(bind::STATE), &d, steps, &token, v, core) };
    }
}
