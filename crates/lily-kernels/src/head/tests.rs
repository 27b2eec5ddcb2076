//! Conformance cases.

use lily_plan::{RowFormat, RowSegment, Step, Weight, WeightMatrix};

use super::{Buffers, Rows, launch};
use crate::conformance::{
    Case, CaseBuilder, Tolerance, decode_steps, few, prefill_steps, small_shapes,
};
use crate::shape::ModelShape;

/// All cases of this kernel.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        for step in decode_steps().into_iter().chain(prefill_steps()) {
            for format in few([RowFormat::Q4, RowFormat::Q8, RowFormat::Bf16]) {
                cases.push(case(&shape, step, format, chosen(step)));
            }
        }
        for step in prefill_steps() {
            cases.push(case(&shape, step, RowFormat::Q4, Rows::All));
        }
    }
    if cfg!(miri) {
        return cases;
    }
    let (step, shape) = (Step::Decode { batch: 3 }, unused_group());
    cases.push(case(&shape, step, RowFormat::Q4, Rows::Sequences));
    for step in [step, Step::Prefill { tokens: 7, sequence: 1 }] {
        cases.push(tied(&shape, step, |_, weight| weight));
    }
    cases
}

/// The rows that end with a choice.
fn chosen(step: Step) -> Rows {
    if step.is_prefill() { Rows::Last } else { Rows::Sequences }
}

/// A vocabulary whose last two groups of 64 hold padding alone.
fn unused_group() -> ModelShape {
    ModelShape { vocab: 420, vocab_used: 290, ..small_shapes()[0].clone() }
}

fn case(shape: &ModelShape, step: Step, format: RowFormat, output: Rows) -> Case {
    let mut c = CaseBuilder::new(shape, step);
    c.label(&format!("{format:?}, {output:?}"));
    let (m, hidden, vocab) = (c.rows(), shape.hidden, shape.vocab);
    // The best id must be the same on every device, so the inputs are such that rounding to 8 bits
    // by groups of 32 or 64 leaves them as they are.
    let input =
        |i: usize, u: f32| if i.is_multiple_of(32) { 127 } else { (u * 255.0) as i32 - 127 };
    let xn = (0..m * hidden).map(|i| input(i, c.uniform()) as f32 / 64.0).collect();
    let batch = c.session.batch;
    let rows = if output == Rows::All { m } else { batch };
    let groups = [batch, shape.head_tiles()];
    let buffers = Buffers {
        control: c.control(),
        xn: c.act_with("xn", [m, hidden], xn),
        x_ss: c.sums("x_ss", [m, hidden / 8]),
        weight: c.matrix("lm_head", 1, vocab, hidden, format),
        logits: c.f32("logits", [rows, vocab]),
        best_value: c.f32("best_value", groups),
        best_id: c.i32("best_id", groups, vec![-9; groups[0] * groups[1]]),
    };
    let launch = launch(&c.context(), output, buffers);
    c.build(launch, Tolerance { bf16: 2e-5, int8: 2e-5, ..Tolerance::product(format) })
}

/// Rows repeat every seven ids, so every group has ties; padding ids have five times the logits.
/// `change(id, weight)` may replace a weight.
fn tied(shape: &ModelShape, step: Step, change: impl Fn(usize, f32) -> f32) -> Case {
    let mut case = case(shape, step, RowFormat::F32, chosen(step));
    case.name += ", tied rows";
    let weight = |id: usize, i: usize| {
        // Bfloat values, so that a device that stores bfloat has the same matrix.
        let w = ((id % 7 * 31 + i * 17) % 41) as f32 / 64.0 - 0.3125;
        change(id, if id < shape.vocab_used { w } else { 5.0 * w.abs() })
    };
    let row = |id: usize| (0..shape.hidden).flat_map(move |i| weight(id, i).to_le_bytes());
    let segment = RowSegment::whole(
        "lm_head",
        RowFormat::F32,
        shape.vocab,
        (0..shape.vocab).flat_map(row).collect::<Vec<u8>>().into(),
        Default::default(),
        Default::default(),
    );
    let matrix = WeightMatrix::new(1, shape.vocab, shape.hidden, vec![segment]);
    let matrix = matrix.expect("the segment covers every row");
    case.weights.insert("lm_head".into(), Weight::Matrix(matrix));
    case
}

#[cfg(test)]
mod unit {
    use super::*;
    use crate::conformance::{Contents, run_face, run_reference};
    use crate::cpu::Numerics;

    /// Every implementation at hand.
    fn runs(case: &Case) -> Vec<Vec<Contents>> {
        vec![run_reference(case), run_face(case, Numerics::Exact), run_face(case, Numerics::Int8)]
    }

    fn floats(case: &Case, out: &[Contents], name: &str) -> Vec<f32> {
        match &out[case.plan.buffers().find(name).unwrap().index()] {
            Contents::Float(values) => values.clone(),
            other => panic!("{name} is {other:?}"),
        }
    }

    fn ints(case: &Case, out: &[Contents], name: &str) -> Vec<i32> {
        match &out[case.plan.buffers().find(name).unwrap().index()] {
            Contents::Int(values) => values.clone(),
            other => panic!("{name} is {other:?}"),
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "the interpreter over a whole vocabulary")]
    fn head_breaks_ties_by_lowest_id_and_never_offers_padding() {
        let shape = unused_group();
        let case = tied(&shape, Step::Decode { batch: 1 }, |_, w| w);
        for out in runs(&case) {
            let (logits, ids) = (floats(&case, &out, "logits"), ints(&case, &out, "best_id"));
            let values = floats(&case, &out, "best_value");
            for (group, (&id, &value)) in ids.iter().zip(&values).enumerate() {
                let first = group * 64;
                if first >= shape.vocab_used {
                    assert_eq!((value, id), (f32::NEG_INFINITY, first as i32));
                    continue;
                }
                let usable = &logits[first..(first + 64).min(shape.vocab_used)];
                let largest = usable.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let lowest = usable.iter().position(|&l| l == largest).unwrap();
                assert_eq!((value, id), (largest, (first + lowest) as i32));
                assert!((id as usize) < first + 7, "a tie lies within every seven ids");
            }
            assert!(logits[shape.vocab_used..].iter().any(|&l| l > values[0]));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "the interpreter over a whole vocabulary")]
    fn a_nan_logit_makes_its_candidate_nan_unless_it_is_padding() {
        let shape = unused_group();
        let nan = |id: usize, w: f32| if [70, 75, 295].contains(&id) { f32::NAN } else { w };
        let case = tied(&shape, Step::Decode { batch: 1 }, nan);
        for out in runs(&case) {
            let values = floats(&case, &out, "best_value");
            let ids = ints(&case, &out, "best_id");
            assert!(values[1].is_nan());
            assert_eq!(ids[1], 70);
            for group in [0, 2, 3, 4] {
                assert!(values[group].is_finite(), "group {group} is {}", values[group]);
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "the interpreter over a whole vocabulary")]
    fn a_broken_residual_row_reaches_every_candidate() {
        let shape = small_shapes()[0].clone();
        let mut case = case(&shape, Step::Decode { batch: 1 }, RowFormat::Q4, Rows::Sequences);
        let at = case.plan.buffers().find("x_ss").unwrap().index();
        if let Contents::Float(sums) = &mut case.contents[at] {
            sums[3] = f32::NAN;
        }
        for out in runs(&case) {
            assert!(floats(&case, &out, "best_value").iter().all(|v| v.is_nan()));
        }
    }
}
