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
    projection(&a).run(l, tile, scratch, |first, row, results| {
        for (out, &value) in (first..).zip(results) {
            let (binding, at) = a.place(out, row);
            // SAFETY: this (matrix row, input row) pair belongs to this tile alone.
            unsafe { l.f32(binding).write(at..at + 1)[0] = value };
        }
    });
}
