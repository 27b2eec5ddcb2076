//! Conformance cases.

use lily_plan::Step;

use super::{Buffers, launch};
use crate::conformance::{Case, CaseBuilder, Tolerance, few, small_shapes};
use crate::gdn::tests::{chunk_sums, unit_heads};
use crate::shape::{CHUNK, ModelShape};

/// All cases of this kernel.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        for tokens in few([33, 65, 133]) {
            for count in few([3, 1, tokens]) {
                cases.push(case(&shape, tokens, [7, 61, count as i32, 0, 0, 99], 0.1));
            }
        }
        if cfg!(miri) {
            continue;
        }
        cases.push(case(&shape, 64, [7, 61, 64, 0, 0, 99], 0.1));
        cases.push(case(&shape, 65, [7, 0, 65, 0, 0, 99], 0.1));
        // 66 tokens with 3 slots: new and old state in one slot.
        cases.push(case(&shape, 70, [7, 61, 66, 0, 0, 99], 0.1));
        cases.push(case(&shape, 70, [7, 61, 70, 0, 0, 99], 40.0));
        cases.push(case(&shape, 70, [7, 61, 70, 1, 0, 99], 0.1));
    }
    cases
}

fn case(shape: &ModelShape, tokens: usize, control: [i32; 6], decay: f32) -> Case {
    let mut c = CaseBuilder::new(shape, Step::Prefill { tokens, sequence: 1 });
    c.label(&format!("control {control:?}, decay {decay}"));
    let (m, batch) = (c.rows(), c.session.batch);
    let state = [batch, c.session.state_slots(), shape.v_heads, shape.v_dim, shape.k_dim];
    // W is at most as long as a key, and P a decayed product of unit vectors.
    let scaled = |c: &mut CaseBuilder<'_>, n: usize, scale: f32| -> Vec<f32> {
        (0..m * shape.v_heads * n).map(|_| scale * c.normal()).collect()
    };
    let w = scaled(&mut c, shape.k_dim, 0.5 / (shape.k_dim as f32).sqrt());
    let mut p = scaled(&mut c, CHUNK, 0.1);
    for (i, row) in p.chunks_mut(CHUNK).enumerate() {
        row[i / shape.v_heads % CHUNK + 1..].fill(0.0);
    }
    let buffers = Buffers {
        control: c.control_rows(&[[5, 37, 0, 0, 3, 99], control]),
        gq: unit_heads(&mut c, "gq", m),
        gk: unit_heads(&mut c, "gk", m),
        chunk_u: c.chunk("chunk_u", [m, shape.v_heads, shape.v_dim]),
        chunk_w: c.chunk_with("chunk_w", [m, shape.v_heads, shape.k_dim], w),
        chunk_g: chunk_sums(&mut c, m, decay),
        chunk_p: c.chunk_with("chunk_p", [m, shape.v_heads, CHUNK], p),
        qkv: c.f32("qkv", [m, shape.conv_channels()]),
        state: c.f32("state", state),
        core: c.f32("core", [m, shape.v_heads, shape.v_dim]),
        conv: c.f32("conv", [batch, c.session.conv_slots(shape), shape.conv_channels()]),
    };
    let launch = launch(&c.context(), buffers);
    c.build(launch, Tolerance::PLAIN)
}
