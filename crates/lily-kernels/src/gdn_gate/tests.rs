//! Conformance cases.

use super::{Buffers, launch};
use crate::conformance::{Case, CaseBuilder, Tolerance, prefill_steps, small_shapes};

/// All cases of this kernel.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        for step in prefill_steps() {
            for halted in [false, true] {
                let mut c = CaseBuilder::new(&shape, step);
                let m = c.rows();
                let control = if halted {
                    c.label("halted");
                    c.control_rows(&[[5, 37, 0, 0, 3, 99], [7, 61, 1, 1, 0, 99]])
                } else {
                    c.control()
                };
                let buffers = Buffers {
                    control,
                    core: c.f32("core", [m, shape.v_heads, shape.v_dim]),
                    z: c.act("z", [m, shape.v_width()]),
                    norm: c.vector("norm", [shape.v_dim], |c| 1.0 + 0.2 * c.normal()),
                    og: c.act("og", [m, shape.v_width()]),
                };
                let launch = launch(&c.context(), buffers);
                cases.push(c.build(launch, Tolerance::PLAIN));
            }
        }
    }
    cases
}
