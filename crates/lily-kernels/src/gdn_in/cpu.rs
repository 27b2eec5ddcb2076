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
    projection(&a).run(l, tile, scratch, |first, row, results| {
        let qkv_row = match a.step.is_prefill() {
            true => row,
            false => row * ring + a.step.position_of(control, row) % ring,
        };
        // The matrix rows are those of three buffers, one after the other.
        let mut begin = 0;
        for (buffer, row, width) in
            [(bind::QKV, qkv_row, channels), (bind::Z, row, v_width), (bind::BA, row, gates)]
        {
            let end = begin + width;
            let out = first.clamp(begin, end)..(first + results.len()).clamp(begin, end);
            if !out.is_empty() {
                let at = row * width + out.start - begin;
                // SAFETY: these (matrix row, input row) pairs belong to this tile alone.
                unsafe { l.f32(buffer).write(at..at + out.len()) }
                    .copy_from_slice(&results[out.start - first..out.end - first]);
            }
            begin = end;
        }
    });
}
