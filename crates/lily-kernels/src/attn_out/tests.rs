//! Conformance cases.

use lily_plan::RowFormat;

use super::{Buffers, launch};
use crate::conformance::{
    Case, CaseBuilder, Tolerance, decode_steps, few, long_product_step, prefill_steps,
    product_steps, small_shapes,
};
use crate::residual::ResidualBuffers;

/// All cases of this kernel.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let steps = decode_steps().into_iter().chain(prefill_steps());
    let steps = steps.flat_map(|step| small_shapes().into_iter().map(move |shape| (shape, step)));
    let long = long_product_step().map(|long| (long, 1));
    for ((shape, step), formats) in steps.chain(product_steps()).map(|s| (s, 3)).chain(long) {
        for format in few([RowFormat::Q4, RowFormat::Q8, RowFormat::Bf16]).take(formats) {
            let mut c = CaseBuilder::new(&shape, step);
            let (m, hidden, width) = (c.rows(), shape.hidden, shape.q_width());
            let buffers = Buffers {
                control: c.control(),
                att: c.act("att", [m, width]),
                weight: c.matrix("weight", 1, hidden, width, format),
                residual: ResidualBuffers {
                    x: c.f32("x", [m, hidden]),
                    next_norm: c.vector("post_norm", [hidden], |c| 1.0 + 0.2 * c.normal()),
                    xn: c.act("xn", [m, hidden]),
                    x_ss: c.sums("x_ss", [m, hidden / 8]),
                },
            };
            let launch = launch(&c.context(), buffers);
            cases.push(c.build(launch, Tolerance::product(format)));
        }
    }
    cases
}
