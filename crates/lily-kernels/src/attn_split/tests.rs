//! Conformance cases.

use lily_plan::Step;

use super::{Buffers, launch};
use crate::conformance::{Case, CaseBuilder, Tolerance, decode_steps, few, small_shapes};
use crate::shape::LaunchContext;

/// All cases of this kernel. Keys beyond the length and blocks beyond those in use are poisoned by
/// the check itself; 4 splits give 1 block up to 32 keys, 4 above 96, blocks of 64 above 128.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        let case = |mut c: CaseBuilder<'_>, positions: Option<&[i32]>, splits: usize| {
            let (m, batch, dim) = (c.rows(), c.session.batch, shape.head_dim);
            let cache = [batch, shape.kv_heads, c.session.capacity, dim];
            let stride = c.session.splits;
            c.label(&format!("{splits} splits, positions {positions:?}"));
            let control = match positions {
                Some(positions) => {
                    let rows: Vec<[i32; 6]> =
                        positions.iter().map(|&p| [5, p, 0, 0, 3, 99]).collect();
                    c.control_rows(&rows)
                }
                None => c.control(),
            };
            let buffers = Buffers {
                control,
                q: c.act("q", [m, shape.q_heads, dim]),
                k: c.kv("k", cache),
                v: c.kv("v", cache),
                part_o: c.f32("part_o", [batch, shape.q_heads, stride, dim]),
                part_ml: c.f32("part_ml", [batch, shape.q_heads, stride, 2]),
            };
            let launch = launch(&LaunchContext { splits, ..c.context() }, buffers);
            c.build(launch, Tolerance::PLAIN)
        };
        for step in decode_steps() {
            for splits in few([1, 3, 4]) {
                cases.push(case(CaseBuilder::new(&shape, step), None, splits));
                cases.push(case(CaseBuilder::new(&shape, step).bf16_cache(), None, splits));
            }
        }
        for position in few([0, 30, 31, 32, 95, 96, 127, 128, 158, 159]) {
            let c = CaseBuilder::new(&shape, Step::Decode { batch: 2 });
            cases.push(case(c, Some(&[position, 159 - position]), 4));
        }
    }
    cases
}
