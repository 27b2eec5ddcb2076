//! The oracle.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::math::{dot, silu};
use crate::routing::work_entries;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    if a.step.live_rows(&io.i32(bind::CONTROL)).is_empty() {
        return;
    }
    let (xn, x_ss, gate_up) = (io.f32(bind::XN), io.f32(bind::X_SS), io.f32(bind::GATE_UP));
    let (work, row_token) = (io.i32(bind::WORK), io.i32(bind::ROW_TOKEN));
    let (hidden, inner) = (a.norm.hidden(), a.inner as usize);
    for entry in work_entries(&work) {
        let size = 2 * inner * hidden;
        let matrix = &gate_up[entry.expert * size..(entry.expert + 1) * size];
        for sorted in entry.rows {
            let token = row_token[sorted] as usize;
            let scale = a.norm.scale(&x_ss, token);
            let x = a.norm.row(&xn, token);
            let y: Vec<f32> = matrix.chunks(hidden).map(|w| scale * dot(w, x)).collect();
            let h: Vec<f32> = y.chunks(2).map(|pair| silu(pair[0]) * pair[1]).collect();
            io.store(bind::HS, sorted * inner, h);
        }
    }
}
