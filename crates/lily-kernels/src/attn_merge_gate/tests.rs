//! Conformance cases.

use lily_plan::{BufferId, Step};

use super::{Buffers, launch};
use crate::conformance::{Case, CaseBuilder, Tolerance, decode_steps, few, small_shapes};
use crate::shape::LaunchContext;

/// All cases of this kernel. Blocks that are not in use are poisoned by the check itself.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        let case = |mut c: CaseBuilder<'_>, positions: Option<[i32; 2]>, splits: usize| {
            let (m, batch, dim) = (c.rows(), c.session.batch, shape.head_dim);
            let stride = c.session.splits;
            c.label(&format!("{splits} splits, positions {positions:?}"));
            let control = match positions {
                Some(p) => c.control_rows(&p.map(|p| [5, p, 0, 0, 3, 99])),
                None => c.control(),
            };
            let buffers = Buffers {
                control,
                part_o: c.f32("part_o", [batch, shape.q_heads, stride, dim]),
                part_ml: maxima_and_sums(&mut c, [batch, shape.q_heads, stride, 2]),
                gate: c.act("gate", [m, shape.q_heads, dim]),
                att: c.act("att", [m, shape.q_width()]),
            };
            let launch = launch(&LaunchContext { splits, ..c.context() }, buffers);
            c.build(launch, Tolerance::PLAIN)
        };
        for step in decode_steps() {
            for splits in few([1, 3, 4]) {
                cases.push(case(CaseBuilder::new(&shape, step), None, splits));
            }
        }
        for position in few([0, 31, 32, 96, 128, 159]) {
            let c = CaseBuilder::new(&shape, Step::Decode { batch: 2 });
            cases.push(case(c, Some([position, 159 - position]), 4));
        }
    }
    cases
}

/// Maxima far apart (the exponential of the largest would overflow) and sums from 1 to 33.
fn maxima_and_sums(c: &mut CaseBuilder<'_>, shape: [usize; 4]) -> BufferId {
    let n = shape.iter().product::<usize>() / 2;
    let pair = |c: &mut CaseBuilder<'_>| [90.0 + 4.0 * c.normal(), 1.0 + 32.0 * c.uniform()];
    let values = (0..n).flat_map(|_| pair(c)).collect();
    c.f32_with("part_ml", shape, values)
}
