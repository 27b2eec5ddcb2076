//! Conformance cases.

use lily_plan::Step;

use super::{Buffers, launch};
use crate::conformance::{Case, CaseBuilder, Tolerance, few, small_shapes};
use crate::gdn::tests::{decays, strengths, unit_heads};
use crate::shape::ModelShape;

/// All cases of this kernel.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        // The session can take 2 steps back: chunks of up to 2 tokens store every state.
        for tokens in few([2, 1, 3, 7, 31]) {
            let n = tokens as i32;
            cases.push(case(&shape, tokens, [5, 61, n, 0, 0, 9], 1.0));
            cases.push(case(&shape, tokens, [5, 0, n, 0, 0, 9], 1.0));
        }
        if cfg!(miri) {
            continue;
        }
        // New and old state in one slot: 6 tokens, 3 slots. Then no token, and a halted sequence.
        cases.push(case(&shape, 7, [5, 61, 6, 0, 0, 9], 1.0));
        cases.push(case(&shape, 7, [5, 61, 0, 0, 0, 9], 1.0));
        cases.push(case(&shape, 7, [5, 61, 6, 1, 0, 9], 1.0));
        cases.push(case(&shape, 7, [5, 61, 6, 0, 0, 9], 300.0));
    }
    cases
}

fn case(shape: &ModelShape, tokens: usize, control: [i32; 6], decay: f32) -> Case {
    let mut c = CaseBuilder::new(shape, Step::Prefill { tokens, sequence: 1 });
    c.label(&format!("control {control:?}, decay {decay}"));
    let (m, batch) = (c.rows(), c.session.batch);
    let state = [batch, c.session.state_slots(), shape.v_heads, shape.v_dim, shape.k_dim];
    let buffers = Buffers {
        control: c.control_rows(&[[5, 37, 0, 0, 3, 99], control]),
        gq: unit_heads(&mut c, "gq", m),
        gk: unit_heads(&mut c, "gk", m),
        gv: c.act("gv", [m, shape.v_heads, shape.v_dim]),
        beta: strengths(&mut c, m),
        log_decay: decays(&mut c, m, decay),
        qkv: c.f32("qkv", [m, shape.conv_channels()]),
        state: c.f32("state", state),
        core: c.f32("core", [m, shape.v_heads, shape.v_dim]),
        conv: c.f32("conv", [batch, c.session.conv_slots(shape), shape.conv_channels()]),
    };
    let launch = launch(&c.context(), buffers);
    c.build(launch, Tolerance::PLAIN)
}
