//! Conformance cases.

use lily_plan::Step;

use super::{Buffers, launch};
use crate::attention::testing::tolerance;
use crate::conformance::{Case, CaseBuilder, decode_steps, prefill_steps, small_shapes};
use crate::shape::ModelShape;

/// Where a case's sequences stand.
const POSITIONS: [[i32; 6]; 2] = [[5, 0, 0, 0, 3, 99], [7, 159, 0, 0, 0, 99]];

/// All cases of this kernel, among them the first and the last position of the cache.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        for step in decode_steps().into_iter().chain(prefill_steps()) {
            cases.push(case(CaseBuilder::new(&shape, step), None));
            cases.push(case(CaseBuilder::new(&shape, step).bf16_cache(), None));
        }
        let mut c = CaseBuilder::new(&shape, Step::Decode { batch: 2 });
        c.label("first and last position");
        cases.push(case(c, Some(&POSITIONS)));
        let mut c = CaseBuilder::new(&shape, Step::Prefill { tokens: 7, sequence: 1 });
        c.label("from position 0");
        cases.push(case(c, Some(&[POSITIONS[0], [7, 0, 5, 0, 0, 99]])));
    }
    if cfg!(miri) {
        return cases;
    }
    // Angles at the end of the longest cache, in a head small enough for it.
    let mut far = small_shapes().remove(0);
    far = ModelShape { q_heads: 1, kv_heads: 1, head_dim: 16, rotary_dim: 16, ..far };
    let mut c = CaseBuilder::new(&far, Step::Decode { batch: 1 });
    c.session.capacity = 262_144;
    c.label("position 262143");
    cases.push(case(c, Some(&[[5, 262_143, 0, 0, 3, 99]])));
    cases
}

fn case(mut c: CaseBuilder<'_>, rows: Option<&[[i32; 6]]>) -> Case {
    let shape = c.shape;
    let (m, batch, dim) = (c.rows(), c.session.batch, shape.head_dim);
    let cache = [batch, shape.kv_heads, c.session.capacity, dim];
    let control = match rows {
        Some(rows) => c.control_rows(rows),
        None => c.control(),
    };
    let buffers = Buffers {
        control,
        aq: c.f32("aq", [m, shape.q_heads, dim]),
        ak: c.f32("ak", [m, shape.kv_heads, dim]),
        av: c.f32("av", [m, shape.kv_heads, dim]),
        q_norm: c.vector("q_norm", [dim], |c| 1.0 + 0.2 * c.normal()),
        k_norm: c.vector("k_norm", [dim], |c| 1.0 + 0.2 * c.normal()),
        q: c.act("q", [m, shape.q_heads, dim]),
        k: c.kv("k", cache),
        v: c.kv("v", cache),
    };
    let launch = launch(&c.context(), buffers);
    let tolerance = tolerance(c.session.precision.kv);
    c.build(launch, tolerance)
}
