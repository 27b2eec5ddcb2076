//! Conformance cases.

use super::{Buffers, launch};
use crate::attention::testing::{decode_builders, prepared, tolerance};
use crate::conformance::{Case, small_shapes};

/// All cases of this kernel. The row of the new position is poisoned by the check itself.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        for (mut c, control) in decode_builders(&shape) {
            let m = c.rows();
            let buffers = Buffers {
                prepared: prepared(&mut c, control),
                gate: c.act("gate", [m, shape.q_heads, shape.head_dim]),
                att: c.act("att", [m, shape.q_width()]),
            };
            let (launch, cache) = (launch(&c.context(), buffers), c.session.precision.kv);
            cases.push(c.build(launch, tolerance(cache)));
        }
    }
    cases
}
