//! Conformance cases.

use super::{Buffers, launch};
use crate::conformance::{Case, CaseBuilder, Tolerance, small_shapes};
use crate::routing::testing::{control, residual, steps};

/// All cases of this kernel.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        for step in steps() {
            let mut c = CaseBuilder::new(&shape, step);
            let (m, slots) = (c.rows(), shape.slots());
            let (control, _) = control(&mut c, step);
            let moe_y = c.f32("moe_y", [m, slots, shape.hidden]);
            let buffers = Buffers { control, moe_y, residual: residual(&mut c) };
            let launch = launch(&c.context(), buffers);
            cases.push(c.build(launch, Tolerance::PLAIN));
        }
    }
    cases
}
