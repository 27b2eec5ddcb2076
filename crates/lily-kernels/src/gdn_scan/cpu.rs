//! CPU face: a tile is a block of value rows of one head, its state turned, `[k_dim, rows]`, in the
//! nearest cache over all tokens. The last tile fills the convolution ring.

use super::{Args, bind};
use crate::cpu::delta::{DeltaToken, delta_columns};
use crate::cpu::panel::turn;
use crate::cpu::{CpuLaunch, Scratch};
use crate::gdn::cpu::ScanTiles;

/// Value rows of one tile: 16 KB of state at the real model's size.
const TILE_ROWS: usize = 32;

fn scan_tiles<'a>(l: &CpuLaunch<'_>, a: &'a Args) -> ScanTiles<'a> {
    ScanTiles::new(&a.step, &a.gdn, l.control(bind::CONTROL), TILE_ROWS)
}

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    scan_tiles(l, &l.args()).count()
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
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
    let (position, tokens, n) = (scan.position, scan.tokens, place.rows.len());
    let state = &mut scratch.floats;
    state.clear();
    state.resize(k_dim * n, 0.0);
    if position > 0 {
        // SAFETY: these rows belong to this tile in every slot; nothing writes them now.
        let old = unsafe { l.f32(bind::STATE).read(place.elements(&d, position)) };
        turn(l.simd, old, (n, k_dim), (state, n));
    }
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
        let token = DeltaToken::new(l.simd, q, k, decay, beta);
        delta_columns(l.simd, state, &token, v, core);
        if a.every_token != 0 || row + 1 == tokens {
            let elements = place.elements(&d, position + row + 1);
            // SAFETY: these rows belong to this tile in every slot; the slice of the old ones is dead.
            let new = unsafe { l.f32(bind::STATE).write(elements) };
            turn(l.simd, state, (k_dim, n), (new, k_dim));
        }
    }
}
