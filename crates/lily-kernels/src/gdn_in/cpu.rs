//! CPU face: blocks of matrix rows, the input prepared once for each block.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Projection, Scratch};

fn projection(a: &Args) -> Projection {
    Projection::new(a.step, a.norm, [bind::CONTROL, bind::XN, bind::X_SS, bind::WEIGHT])
}

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    projection(&l.args()).tiles(l).count()
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (channels, v_width) = (a.conv_channels as usize, a.v_width as usize);
    let (ring, gates) = (a.conv_slots as usize, 2 * a.v_heads as usize);
    let control = l.control(bind::CONTROL);
    projection(&a).run(l, tile, scratch, |out, row, value| {
        let qkv_row = || match a.step.is_prefill() {
            true => row,
            false => row * ring + a.step.position_of(control, row) % ring,
        };
        let (buffer, at) = if out < channels {
            (bind::QKV, qkv_row() * channels + out)
        } else if out < channels + v_width {
            (bind::Z, row * v_width + out - channels)
        } else {
            (bind::BA, row * gates + out - channels - v_width)
        };
        // SAFETY: this (matrix row, input row) pair belongs to this tile alone.
        unsafe { l.f32(buffer).write(at..at + 1)[0] = value };
    });
}
