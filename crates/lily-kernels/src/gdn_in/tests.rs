//! Conformance cases.

use lily_plan::{RowFormat, Step};

use super::{Buffers, launch};
use crate::conformance::{
    Case, CaseBuilder, Tolerance, decode_steps, few, long_product_step, prefill_steps,
    product_steps, small_shapes,
};

/// All cases of this kernel.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let steps = decode_steps().into_iter().chain(prefill_steps());
    let steps = steps.flat_map(|step| small_shapes().into_iter().map(move |shape| (shape, step)));
    let long = long_product_step().map(|long| (long, 1));
    for ((shape, step), formats) in steps.chain(product_steps()).map(|s| (s, 3)).chain(long) {
        for format in few([RowFormat::Q4, RowFormat::Q8, RowFormat::Bf16]).take(formats) {
            let mut c = CaseBuilder::new(&shape, step);
            let (m, hidden) = (c.rows(), shape.hidden);
            let control = c.control();
            let qkv_shape = match step {
                Step::Decode { batch } => {
                    vec![batch, c.session.conv_slots(&shape), shape.conv_channels()]
                }
                Step::Prefill { .. } => vec![m, shape.conv_channels()],
            };
            let buffers = Buffers {
                control,
                xn: c.act("xn", [m, hidden]),
                x_ss: c.sums("x_ss", [m, hidden / 8]),
                weight: c.matrix("weight", 1, shape.gdn_rows(), hidden, format),
                qkv: c.f32("qkv", qkv_shape),
                z: c.act("z", [m, shape.v_width()]),
                ba: c.f32("ba", [m, 2 * shape.v_heads]),
            };
            let launch = launch(&c.context(), buffers);
            cases.push(c.build(launch, Tolerance::product(format)));
        }
    }
    cases
}
