//! Conformance cases.

use lily_plan::Step;

use super::{Buffers, launch};
use crate::conformance::{Case, CaseBuilder, Tolerance, few, small_shapes};
use crate::gdn::tests::{decays, strengths, unit_heads};
use crate::shape::{CHUNK, ModelShape};

/// All cases of this kernel.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        for tokens in few([33, 64, 65, 133]) {
            for count in few([3, 1, tokens - 2, tokens]) {
                cases.push(case(&shape, tokens, [7, 61, count as i32, 0, 0, 99], 0.2));
            }
        }
        if cfg!(miri) {
            continue;
        }
        // e^-G alone would be infinite.
        cases.push(case(&shape, 70, [7, 0, 70, 0, 0, 99], 40.0));
        cases.push(case(&shape, 70, [7, 61, 70, 1, 0, 99], 0.2));
    }
    cases
}

fn case(shape: &ModelShape, tokens: usize, control: [i32; 6], decay: f32) -> Case {
    let mut c = CaseBuilder::new(shape, Step::Prefill { tokens, sequence: 1 });
    c.label(&format!("control {control:?}, decay {decay}"));
    let m = c.rows();
    let buffers = Buffers {
        control: c.control_rows(&[[5, 37, 0, 0, 3, 99], control]),
        gq: unit_heads(&mut c, "gq", m),
        gk: unit_heads(&mut c, "gk", m),
        gv: c.act("gv", [m, shape.v_heads, shape.v_dim]),
        beta: strengths(&mut c, m),
        log_decay: decays(&mut c, m, decay),
        chunk_u: c.chunk("chunk_u", [m, shape.v_heads, shape.v_dim]),
        chunk_w: c.chunk("chunk_w", [m, shape.v_heads, shape.k_dim]),
        chunk_g: c.f32("chunk_g", [m, shape.v_heads]),
        chunk_p: c.chunk("chunk_p", [m, shape.v_heads, CHUNK]),
    };
    let launch = launch(&c.context(), buffers);
    c.build(launch, Tolerance::PLAIN)
}
