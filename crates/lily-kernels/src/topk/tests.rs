//! Conformance cases.

use lily_plan::Step;

use super::{Buffers, launch};
use crate::conformance::{Case, CaseBuilder, Tolerance, small_shapes};
use crate::routing::testing::{control, steps};
use crate::shape::ModelShape;

/// All cases of this kernel: random logits; many ties; large ones, where an unshifted exponential
/// overflows; and logits that are not finite.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        for step in steps() {
            cases.push(case(&shape, step, "random", |c, _| 2.0 * c.normal()));
            cases.push(case(&shape, step, "ties", |c, _| (3.0 * c.uniform()).floor()));
            cases.push(case(&shape, step, "all equal", |_, _| -0.25));
            cases.push(case(&shape, step, "large", |c, _| 900.0 + 40.0 * c.normal()));
            cases.push(case(&shape, step, "not finite", |c, expert| match expert % 5 {
                0 => f32::NAN,
                1 => f32::NEG_INFINITY,
                2 if c.uniform() < 0.5 => f32::INFINITY,
                _ => c.normal(),
            }));
        }
    }
    cases
}

/// `logit` gives the routed logits; the shared expert's are normal.
fn case(
    shape: &ModelShape,
    step: Step,
    label: &str,
    mut logit: impl FnMut(&mut CaseBuilder<'_>, usize) -> f32,
) -> Case {
    let mut c = CaseBuilder::new(shape, step);
    c.label(label);
    let (m, experts, slots) = (c.rows(), shape.experts, shape.slots());
    let (control, _) = control(&mut c, step);
    let mut logits = Vec::new();
    for _ in 0..m {
        logits.extend((0..experts).map(|expert| logit(&mut c, expert)).collect::<Vec<f32>>());
        logits.push(c.normal());
    }
    let buffers = Buffers {
        control,
        router_logits: c.f32_with("router_logits", [m, experts + 1], logits),
        ids: c.i32("ids", [m, slots], vec![-7; m * slots]),
        route: c.f32("route", [m, slots]),
    };
    let launch = launch(&c.context(), buffers);
    c.build(launch, Tolerance::PLAIN)
}
