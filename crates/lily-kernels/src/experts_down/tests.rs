//! Conformance cases.

use lily_plan::{RowFormat, Step};

use super::{Buffers, FusedBuffers, launch, launch_fused};
use crate::conformance::{Case, CaseBuilder, Tolerance, decode_steps, few, small_shapes};
use crate::routing::testing::{Pattern, control, ids, residual, route};
use crate::shape::ModelShape;

/// All cases of this kernel: ids and weights given, and experts chosen from logits with ties.
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
    let (m, slots) = (c.rows(), shape.slots());
    let (control, _) = control(&mut c, step);
    let h = c.act("h", [m, slots, shape.inner]);
    let down = c.matrix("down", shape.experts + 1, shape.hidden, shape.inner, format);
    let residual = residual(&mut c);
    let launch = if fused {
        c.label("fused");
        let logits = shape.experts + 1;
        let values = (0..m * logits).map(|_| (6.0 * c.uniform()).floor()).collect();
        let router_logits = c.f32_with("router_logits", [m, logits], values);
        launch_fused(&c.context(), FusedBuffers { control, h, router_logits, down, residual })
    } else {
        let values = ids(&mut c, Pattern::Random);
        let (ids, route) = (c.i32("ids", [m, slots], values), route(&mut c));
        launch(&c.context(), Buffers { control, h, ids, route, down, residual })
    };
    c.build(launch, Tolerance::product(format))
}
