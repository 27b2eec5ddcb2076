//! CPU face: a tile is one head of one sequence.

use super::{Args, bind};
use crate::attention::blocks;
use crate::cpu::{CpuLaunch, Scratch};
use crate::math::sigmoid;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    a.step.live_rows(l.control(bind::CONTROL)).len() * a.q_heads as usize
}

pub(super) fn run(l: &CpuLaunch<'_>, tile: usize, _scratch: &mut Scratch) {
    let a: Args = l.args();
    let (dim, q_heads) = (a.head_dim as usize, a.q_heads as usize);
    let control = l.control(bind::CONTROL);
    let row = a.step.live_rows(control).nth(tile / q_heads);
    let used = blocks(a.step.position_of(control, row) + 1, a.splits as usize);
    let index = row * q_heads + tile % q_heads;
    let first = index * a.part_stride as usize;
    // SAFETY: partial results and gate are not written here; this head belongs to this tile alone.
    let (part_o, part_ml, gate, att) = unsafe {
        (
            l.f32(bind::PART_O).read(first * dim..(first + used) * dim),
            l.f32(bind::PART_ML).read(2 * first..2 * (first + used)),
            l.f32(bind::GATE).read(index * dim..(index + 1) * dim),
            l.f32(bind::ATT).write(index * dim..(index + 1) * dim),
        )
    };
    let max = part_ml.chunks(2).map(|ml| ml[0]).fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    att.fill(0.0);
    for (o, ml) in part_o.chunks(dim).zip(part_ml.chunks(2)) {
        let factor = (ml[0] - max).exp();
        sum += factor * ml[1];
        l.simd.axpy(factor, o, att);
    }
    for (att, gate) in att.iter_mut().zip(gate) {
        *att = *att / sum * sigmoid(*gate);
    }
}
