//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::attention::blocks;
use crate::math::sigmoid;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, gate) = (io.i32(bind::CONTROL), io.f32(bind::GATE));
    let (part_o, part_ml) = (io.f32(bind::PART_O), io.f32(bind::PART_ML));
    let dim = a.head_dim as usize;
    for row in a.step.live_rows(&control).iter() {
        let used = blocks(a.step.position_of(&control, row) + 1, a.splits as usize);
        for head in 0..a.q_heads as usize {
            let index = row * a.q_heads as usize + head;
            let first = index * a.part_stride as usize;
            let ml: Vec<(f32, f32)> =
                (first..first + used).map(|s| (part_ml[2 * s], part_ml[2 * s + 1])).collect();
            let max = ml.iter().map(|p| p.0).fold(f32::NEG_INFINITY, f32::max);
            let factors: Vec<f64> = ml.iter().map(|p| f64::from(p.0 - max).exp()).collect();
            let sum: f64 = factors.iter().zip(&ml).map(|(f, p)| f * f64::from(p.1)).sum();
            let element = |i: usize| {
                let parts = (first..first + used).zip(&factors);
                let o: f64 = parts.map(|(s, f)| f * f64::from(part_o[s * dim + i])).sum();
                (o / sum) as f32 * sigmoid(gate[index * dim + i])
            };
            io.store(bind::ATT, index * dim, (0..dim).map(element).collect::<Vec<f32>>());
        }
    }
}
