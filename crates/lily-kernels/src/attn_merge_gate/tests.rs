//! Conformance cases.

use lily_plan::{BufferId, Step};

use super::{Buffers, launch};
use crate::conformance::{
    Case, CaseBuilder, Tolerance, decode_steps, few, long_shapes, small_shapes,
};
use crate::shape::{LaunchContext, ModelShape};

/// All cases of this kernel. Blocks that are not in use are poisoned by the check itself.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        for step in decode_steps() {
            for splits in few([1, 3, 4]) {
                let mut c = CaseBuilder::new(&shape, step);
                let control = c.control();
                cases.push(case(c, &shape, control, splits));
            }
        }
        for position in few([0, 31, 32, 96, 128, 159]) {
            let mut c = CaseBuilder::new(&shape, Step::Decode { batch: 2 });
            c.label(&format!("position {position}"));
            let control = c.control_rows(&[position, 159 - position].map(|p| [5, p, 0, 0, 3, 99]));
            cases.push(case(c, &shape, control, 4));
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
    let (m, batch, dim) = (c.rows(), c.session.batch, shape.head_dim);
    let stride = c.session.splits;
    c.label(&format!("{splits} splits"));
    let buffers = Buffers {
        control,
        part_o: c.f32("part_o", [batch, shape.q_heads, stride, dim]),
        part_ml: maxima_and_sums(&mut c, [batch, shape.q_heads, stride, 2]),
        gate: c.act("gate", [m, shape.q_heads, dim]),
        att: c.act("att", [m, shape.q_width()]),
    };
    let launch = launch(&LaunchContext { splits, ..c.context() }, buffers);
    c.build(launch, Tolerance::PLAIN)
}

/// Maxima far apart (the exponential of the largest would overflow) and sums from 1 to 33.
fn maxima_and_sums(c: &mut CaseBuilder<'_>, shape: [usize; 4]) -> BufferId {
    let n = shape.iter().product::<usize>() / 2;
    let pair = |c: &mut CaseBuilder<'_>| [90.0 + 4.0 * c.normal(), 1.0 + 32.0 * c.uniform()];
    let values = (0..n).flat_map(|_| pair(c)).collect();
    c.f32_with("part_ml", shape, values)
}
