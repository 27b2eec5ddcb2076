//! Conformance cases.

use lily_plan::RowFormat;

use super::{Buffers, launch};
use crate::conformance::{Case, CaseBuilder, Tolerance, few, product_steps, small_shapes};
use crate::routing::testing::{PATTERNS, control, groups, route, steps};

/// All cases of this kernel; equal routing gives entries of several tiles and empty experts.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let steps = steps().into_iter();
    let steps = steps.flat_map(|step| small_shapes().into_iter().map(move |shape| (shape, step)));
    for (shape, step) in steps.chain(product_steps()) {
        for pattern in few(PATTERNS) {
            for format in few([RowFormat::Q4, RowFormat::Bf16]) {
                let mut c = CaseBuilder::new(&shape, step);
                c.label(&format!("{pattern:?}"));
                let (m, hidden, inner, slots) =
                    (c.rows(), shape.hidden, shape.inner, shape.slots());
                let (control, live) = control(&mut c, step);
                let groups = groups(&mut c, pattern, &live);
                let buffers = Buffers {
                    control,
                    hs: c.act("hs", [m * slots, inner]),
                    work: c.i32("work", [groups.work.len() / 4, 4], groups.work),
                    row_token: c.i32("row_token", [m * slots], groups.row_token),
                    row_slot: c.i32("row_slot", [m * slots], groups.row_slot),
                    route: route(&mut c),
                    down: c.matrix("down", shape.experts + 1, hidden, inner, format),
                    moe_y: c.f32("moe_y", [m, slots, hidden]),
                };
                let launch = launch(&c.context(), buffers);
                cases.push(c.build(launch, Tolerance::product(format)));
            }
        }
    }
    cases
}
