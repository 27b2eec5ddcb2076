//! Conformance cases.

use lily_plan::{BufferId, Step};

use super::{Buffers, launch};
use crate::attention::testing::{STEEP, queries};
use crate::conformance::{
    Case, CaseBuilder, Tolerance, decode_steps, few, long_shapes, small_shapes,
};
use crate::shape::{LaunchContext, ModelShape};

/// All cases of this kernel. Keys beyond the length and blocks beyond those in use are poisoned by
/// the check itself; 4 splits give 1 block up to 32 keys, 4 above 96, blocks of 64 above 128.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        for step in decode_steps() {
            for splits in few([1, 3, 4]) {
                for mut c in
                    [CaseBuilder::new(&shape, step), CaseBuilder::new(&shape, step).bf16_cache()]
                {
                    let control = c.control();
                    cases.push(case(c, &shape, control, splits, 1.0));
                }
            }
        }
        for position in few([0, 30, 31, 32, 95, 96, 127, 128, 158, 159]) {
            let mut c = CaseBuilder::new(&shape, Step::Decode { batch: 2 });
            c.label(&format!("position {position}"));
            let control = c.control_rows(&[position, 159 - position].map(|p| [5, p, 0, 0, 3, 99]));
            cases.push(case(c, &shape, control, 4, 1.0));
        }
        let mut c = CaseBuilder::new(&shape, Step::Decode { batch: 3 });
        c.label("steep scores");
        let control = c.control();
        cases.push(case(c, &shape, control, 1, STEEP));
    }
    for shape in long_shapes() {
        let (c, control) = CaseBuilder::long_context(&shape);
        let splits = c.session.splits;
        cases.push(case(c, &shape, control, splits, 1.0));
    }
    cases
}

fn case(
    mut c: CaseBuilder<'_>,
    shape: &ModelShape,
    control: BufferId,
    splits: usize,
    steepness: f32,
) -> Case {
    let (m, batch, dim) = (c.rows(), c.session.batch, shape.head_dim);
    let cache = [batch, shape.kv_heads, c.session.capacity, dim];
    let stride = c.session.splits;
    c.label(&format!("{splits} splits"));
    let buffers = Buffers {
        control,
        q: queries(&mut c, [m, shape.q_heads, dim], steepness),
        k: c.kv("k", cache),
        v: c.kv("v", cache),
        part_o: c.f32("part_o", [batch, shape.q_heads, stride, dim]),
        part_ml: c.f32("part_ml", [batch, shape.q_heads, stride, 2]),
    };
    let launch = launch(&LaunchContext { splits, ..c.context() }, buffers);
    c.build(launch, Tolerance::PLAIN)
}
