//! Conformance cases.

use lily_plan::{RowFormat, Step};

use super::{Buffers, launch};
use crate::conformance::{Case, CaseBuilder, Tolerance, few, small_shapes};
use crate::routing::testing::{control, steps};
use crate::shape::ModelShape;

/// All cases of this kernel. The tolerance is that of f32 for every device with f32 activations:
/// inputs rounded to 8 bits fail.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        for step in steps() {
            for format in few([RowFormat::Q8, RowFormat::Q4, RowFormat::Bf16]) {
                cases.push(case(&shape, step, format));
            }
        }
    }
    // Chunks as long as this have their own form on some devices.
    if let (false, Some(shape)) = (cfg!(miri), small_shapes().first()) {
        cases.push(case(shape, Step::Prefill { tokens: 1027, sequence: 1 }, RowFormat::Q8));
    }
    cases
}

fn case(shape: &ModelShape, step: Step, format: RowFormat) -> Case {
    let mut c = CaseBuilder::new(shape, step);
    let (m, hidden, logits) = (c.rows(), shape.hidden, shape.experts + 1);
    let (control, _) = control(&mut c, step);
    let buffers = Buffers {
        control,
        x: c.f32("x", [m, hidden]),
        x_ss: c.sums("x_ss", [m, hidden / 8]),
        post_norm: c.vector("post_norm", [hidden], |c| 1.0 + 0.2 * c.normal()),
        weight: c.matrix("weight", 1, logits, hidden, format),
        router_logits: c.f32("router_logits", [m, logits]),
    };
    let launch = launch(&c.context(), buffers);
    c.build(launch, Tolerance::PLAIN)
}
