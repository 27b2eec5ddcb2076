//! Conformance cases.

use lily_plan::Step;

use super::{Buffers, launch};
use crate::conformance::{Case, CaseBuilder, Tolerance, prefill_steps, small_shapes};
use crate::shape::ModelShape;

/// All cases of this kernel.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        for step in prefill_steps() {
            cases.push(case(&shape, step, None));
            // Nothing of the ring is read at position 0, and only one column at position 1.
            cases.push(case(&shape, step, Some([5, 0, 1, 0, 0, 9])));
            cases.push(case(&shape, step, Some([5, 1, step.rows() as i32, 0, 0, 9])));
            cases.push(case(&shape, step, Some([5, 40, 1, 1, 0, 9])));
        }
    }
    cases
}

fn case(shape: &ModelShape, step: Step, control: Option<[i32; 6]>) -> Case {
    let mut c = CaseBuilder::new(shape, step);
    let (m, batch) = (c.rows(), c.session.batch);
    let control = match control {
        Some(row) => {
            c.label(&format!("control {row:?}"));
            c.control_rows(&[[5, 37, 0, 0, 3, 99], row])
        }
        None => c.control(),
    };
    let buffers = Buffers {
        control,
        qkv: c.f32("qkv", [m, shape.conv_channels()]),
        conv: c.f32("conv", [batch, c.session.conv_slots(shape), shape.conv_channels()]),
        ba: c.f32("ba", [m, 2 * shape.v_heads]),
        conv1d: c.vector("conv1d", [shape.conv_channels(), shape.conv_width], |c| 0.5 * c.normal()),
        a_log: c.vector("a_log", [shape.v_heads], |c| c.normal()),
        dt_bias: c.vector("dt_bias", [shape.v_heads], |c| 0.5 * c.normal()),
        gq: c.act("gq", [m, shape.k_heads, shape.k_dim]),
        gk: c.act("gk", [m, shape.k_heads, shape.k_dim]),
        gv: c.act("gv", [m, shape.v_heads, shape.v_dim]),
        beta: c.f32("beta", [m, shape.v_heads]),
        log_decay: c.f32("log_decay", [m, shape.v_heads]),
    };
    let launch = launch(&c.context(), buffers);
    c.build(launch, Tolerance::PLAIN)
}
