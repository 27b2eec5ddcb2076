//! Conformance cases.

use lily_plan::BufferId;

use super::{Buffers, launch};
use crate::attention::testing::{decode_builders, prepared, tolerance};
use crate::conformance::{Case, CaseBuilder, few, long_shapes, small_shapes};
use crate::shape::{LaunchContext, ModelShape};

/// All cases of this kernel. The row of the new position and unused blocks are poisoned by the check
/// itself.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        for splits in few([1, 3, 4]) {
            for (c, control) in decode_builders(&shape) {
                cases.push(case(c, &shape, control, splits));
            }
        }
    }
    for shape in long_shapes() {
        let (c, control) = CaseBuilder::long_context(&shape);
        let splits = c.session.splits;
        cases.push(case(c, &shape, control, splits));
    }
    cases
}

fn case(mut c: CaseBuilder<'_>, shape: &ModelShape, control: BufferId, splits: usize) -> Case {
    c.label(&format!("{splits} splits"));
    let (batch, stride) = (c.session.batch, c.session.splits);
    let buffers = Buffers {
        prepared: prepared(&mut c, control),
        part_o: c.f32("part_o", [batch, shape.q_heads, stride, shape.head_dim]),
        part_ml: c.f32("part_ml", [batch, shape.q_heads, stride, 2]),
    };
    let launch = launch(&LaunchContext { splits, ..c.context() }, buffers);
    let cache = c.session.precision.kv;
    c.build(launch, tolerance(cache))
}
