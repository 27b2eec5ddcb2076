//! Conformance cases.

use lily_plan::{RowFormat, Step};

use super::{Buffers, FusedBuffers, launch, launch_fused};
use crate::conformance::{Case, CaseBuilder, Tolerance, decode_steps, few, small_shapes};
use crate::routing::testing::{Pattern, control, ids};
use crate::shape::ModelShape;

/// All cases of this kernel: ids given, and experts chosen from logits with ties.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        for step in decode_steps() {
            for format in few([RowFormat::Q4, RowFormat::Q8, RowFormat::Bf16]) {
                cases.push(case(&shape, step, format, false));
                cases.push(case(&shape, step, format, true));
            }
        }
    }
    cases
}

fn case(shape: &ModelShape, step: Step, format: RowFormat, fused: bool) -> Case {
    let mut c = CaseBuilder::new(shape, step);
    let (m, hidden, slots) = (c.rows(), shape.hidden, shape.slots());
    let (control, _) = control(&mut c, step);
    let xn = c.act("xn", [m, hidden]);
    let x_ss = c.sums("x_ss", [m, hidden / 8]);
    let gate_up = c.matrix("gate_up", shape.experts + 1, 2 * shape.inner, hidden, format);
    let h = c.act("h", [m, slots, shape.inner]);
    let launch = if fused {
        c.label("fused");
        let logits = shape.experts + 1;
        let values = (0..m * logits).map(|_| (6.0 * c.uniform()).floor()).collect();
        let router_logits = c.f32_with("router_logits", [m, logits], values);
        launch_fused(&c.context(), FusedBuffers { control, xn, x_ss, router_logits, gate_up, h })
    } else {
        let values = ids(&mut c, Pattern::Random);
        let ids = c.i32("ids", [m, slots], values);
        launch(&c.context(), Buffers { control, xn, x_ss, ids, gate_up, h })
    };
    c.build(launch, Tolerance::product(format))
}
