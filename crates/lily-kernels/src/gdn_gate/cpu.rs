//! CPU face: a tile is a few tokens with all their heads.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Scratch, part};
use crate::math::rms_scale;

/// Tokens of one tile.
const TILE_TOKENS: usize = 4;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    a.step.live_rows(l.control(bind::CONTROL)).len().div_ceil(TILE_TOKENS)
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, _scratch: &mut Scratch) {
    let a: Args = l.args();
    let (v_dim, v_width) = (a.v_dim as usize, (a.v_heads * a.v_dim) as usize);
    let live = a.step.live_rows(l.control(bind::CONTROL)).len();
    for row in part(live, TILE_TOKENS, tile) {
        let span = row * v_width..(row + 1) * v_width;
        // SAFETY: the launch only reads these; this row of `og` belongs to this tile.
        let (core, z, norm, og) = unsafe {
            (
                l.f32(bind::CORE).read(span.clone()),
                l.f32(bind::Z).read(span.clone()),
                l.f32(bind::NORM).read(0..v_dim),
                l.f32(bind::OG).write(span),
            )
        };
        og.copy_from_slice(z);
        l.simd.silu(og);
        for (o, og) in core.chunks(v_dim).zip(og.chunks_mut(v_dim)) {
            let scale = rms_scale(l.simd.dot(o, o), v_dim, a.rms_eps);
            for ((og, o), w) in og.iter_mut().zip(o).zip(norm) {
                *og *= o * scale * w;
            }
        }
    }
}
