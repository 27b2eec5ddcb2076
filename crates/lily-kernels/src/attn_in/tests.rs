//! Conformance cases.

use lily_plan::RowFormat;

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
            let (m, hidden, head_dim) = (c.rows(), shape.hidden, shape.head_dim);
            let buffers = Buffers {
                control: c.control(),
                xn: c.act("xn", [m, hidden]),
                x_ss: c.sums("x_ss", [m, hidden / 8]),
                weight: c.matrix("weight", 1, shape.attn_rows(), hidden, format),
                aq: c.f32("aq", [m, shape.q_heads, head_dim]),
                gate: c.act("gate", [m, shape.q_heads, head_dim]),
                ak: c.f32("ak", [m, shape.kv_heads, head_dim]),
                av: c.f32("av", [m, shape.kv_heads, head_dim]),
            };
            let launch = launch(&c.context(), buffers);
            cases.push(c.build(launch, Tolerance::product(format)));
        }
    }
    cases
}

#[cfg(test)]
mod unit {
    use super::super::{Args, bind};
    use crate::norm::NormArgs;
    use crate::shape::StepArgs;

    #[test]
    fn query_and_gate_rows_alternate_by_head() {
        let step = StepArgs { prefill: 0, rows: 1, sequence: 0 };
        let norm = NormArgs { hidden: 64, ss_tiles: 8, ss_stride: 8, rms_eps: 0.0 };
        let a = Args { step, norm, q_heads: 2, kv_heads: 1, head_dim: 3 };
        let places: Vec<_> = (0..18).map(|out| a.place(out, 1)).collect();
        let want = [(bind::AQ, 6), (bind::GATE, 6), (bind::AQ, 9), (bind::GATE, 9)];
        let want = want.into_iter().chain([(bind::AK, 3), (bind::AV, 3)]);
        let want: Vec<_> =
            want.flat_map(|(b, first)| (first..first + 3).map(move |i| (b, i))).collect();
        assert_eq!(places, want);
    }
}
