//! Conformance cases.

use lily_plan::{RowFormat, Step};

use super::{Buffers, launch};
use crate::conformance::{
    Case, CaseBuilder, Tolerance, decode_steps, few, prefill_steps, small_shapes,
};
use crate::residual::ResidualBuffers;
use crate::shape::ModelShape;

/// All cases of this kernel. The prompt behind the valid tokens holds no ids.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        for step in decode_steps().into_iter().chain(prefill_steps()) {
            for format in few([RowFormat::Q4, RowFormat::Q8, RowFormat::Bf16]) {
                cases.push(case(&shape, step, format));
            }
        }
    }
    cases
}

fn case(shape: &ModelShape, step: Step, format: RowFormat) -> Case {
    let mut c = CaseBuilder::new(shape, step);
    let (m, hidden) = (c.rows(), shape.hidden);
    let control = c.control();
    let valid = m.saturating_sub(2).max(1);
    let id = |i: usize| match i {
        0 => 0,
        1 => shape.vocab as i32 - 1,
        // Some ids more than once.
        i if i < valid => (i * i * 31 % 97) as i32,
        i => {
            if i.is_multiple_of(2) {
                -7
            } else {
                i32::MAX
            }
        }
    };
    let buffers = Buffers {
        control,
        weight: c.matrix("embed_tokens", 1, shape.vocab, hidden, format),
        residual: ResidualBuffers {
            x: c.f32("x", [m, hidden]),
            next_norm: c.vector("input_norm", [hidden], |c| 1.0 + 0.2 * c.normal()),
            xn: c.act("xn", [m, hidden]),
            x_ss: c.sums("x_ss", [m, hidden / 8]),
        },
        prompt: c.i32("prompt", [m], (0..m).map(id).collect::<Vec<i32>>()),
    };
    let launch = launch(&c.context(), buffers);
    c.build(launch, Tolerance::PLAIN)
}
