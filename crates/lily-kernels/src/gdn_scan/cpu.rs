//! CPU face: a tile is a block of value rows of one head; its state stays in the nearest caches over
//! all tokens. The last tile fills the convolution ring.

use super::{Args, bind};
use crate::cpu::delta::DeltaToken;
use crate::cpu::{CpuLaunch, Scratch};
use crate::gdn::cpu::ScanTiles;

/// Value rows of one tile: half of the real model's head.
const TILE_ROWS: usize = 64;

fn scan_tiles<'a>(l: &CpuLaunch<'_>, a: &'a Args) -> ScanTiles<'a> {
    ScanTiles::new(&a.step, &a.gdn, l.control(bind::CONTROL), TILE_ROWS)
}

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    scan_tiles(l, &l.args()).count()
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, _scratch: &mut Scratch) {
    let a: Args = l.args();
    let d = a.gdn;
    let (k_heads, v_heads) = (d.k_heads as usize, d.v_heads as usize);
    let (k_dim, v_dim) = (d.k_dim as usize, d.v_dim as usize);
    let scan = scan_tiles(l, &a);
    let Some(place) = scan.nth(tile) else {
        // SAFETY: the launch only reads `qkv`; no other tile touches the ring.
        unsafe { scan.store_columns(l.f32(bind::QKV), l.f32(bind::CONV), a.kept_columns) };
        return;
    };
    let (position, tokens) = (scan.position, scan.tokens);
    for row in 0..tokens {
        let (key, head) =
            ((row * k_heads + d.key_head(place.v_head)) * k_dim, row * v_heads + place.v_head);
        let span = head * v_dim + place.rows.start..head * v_dim + place.rows.end;
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
        unsafe { place.step(l.f32(bind::STATE), &d, steps, &token, v, core) };
    }
}
