//! Conformance cases.

use lily_plan::{Step, control};

use super::{Buffers, launch};
use crate::conformance::{Case, CaseBuilder, Tolerance, small_shapes};
use crate::shape::ModelShape;

/// What a case puts into the buffers: a control row `[token, position, count, halt, produced,
/// limit]` for each sequence, the candidates of each row, a stop list for each sequence.
struct Setup {
    label: &'static str,
    rows: Vec<[i32; 6]>,
    values: Vec<Vec<f32>>,
    stops: Vec<i32>,
}

fn shape() -> ModelShape {
    // Five groups of candidates, as many as the cases below list.
    ModelShape { vocab: 300, vocab_used: 290, ..small_shapes()[0].clone() }
}

/// Candidate ids: one from each group, 64 apart.
fn id(group: usize) -> i32 {
    group as i32 * 64 + 11
}

/// All cases of this kernel. The cache has 160 positions, the ring 8 slots.
pub fn cases() -> Vec<Case> {
    let go = [5, 37, 0, 0, 3, 99];
    let plain = vec![0.5, -1.0, 2.5, 2.0, 1.0];
    let one = |label, row, values: Vec<f32>, stops| Setup {
        label,
        rows: vec![row],
        values: vec![values],
        stops,
    };
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let singles = [
        one("plain", go, plain.clone(), vec![]),
        one("ties go to the lowest id", go, vec![0.5, 2.5, -1.0, 2.5, 2.5], vec![]),
        one("all negative", go, vec![-5.0, -3.0, -4.0, -3.5, f32::NEG_INFINITY], vec![]),
        one("stop id", go, plain.clone(), vec![7, id(2)]),
        one("another stop id", go, plain.clone(), vec![7, id(3)]),
        one("limit reached", [5, 37, 0, 0, 98, 99], plain.clone(), vec![]),
        one("limit not reached", [5, 37, 0, 0, 97, 99], plain.clone(), vec![]),
        one("cache full", [5, 159, 0, 0, 3, 99], plain.clone(), vec![]),
        one("one position left", [5, 158, 0, 0, 3, 99], plain.clone(), vec![]),
        one("ring wraps", [5, 37, 0, 0, 13, 99], plain.clone(), vec![]),
        one("NaN first", go, vec![nan, 1.0, 2.0, 3.0, 4.0], vec![]),
        one("NaN behind the largest", go, vec![1.0, 9.0, 2.0, 3.0, nan], vec![]),
        one("infinite", go, vec![1.0, inf, 2.0, 3.0, 4.0], vec![]),
        one("nothing to choose", go, vec![-inf; 5], vec![]),
        one("halted", [5, 37, 0, 1, 3, 99], plain.clone(), vec![]),
        one("halted over NaN", [5, 37, 0, 2, 3, 99], vec![nan; 5], vec![]),
    ];
    let mut cases: Vec<Case> =
        singles.into_iter().map(|s| case(Step::Decode { batch: 1 }, s)).collect();
    let batch = |label, halts: [i32; 3], middle: f32| Setup {
        label,
        rows: halts.iter().zip(0..).map(|(&h, i)| [5 + i, 37 + 9 * i, 0, h, i, 99]).collect(),
        values: vec![
            plain.clone(),
            vec![middle, 0.0, 1.0, 1.5, -2.0],
            vec![0.0, 3.0, 1.0, 3.0, 2.0],
        ],
        stops: vec![id(1)],
    };
    cases.push(case(Step::Decode { batch: 3 }, batch("the last stops", [0, 0, 0], 9.0)));
    cases.push(case(Step::Decode { batch: 3 }, batch("the first is halted", [1, 0, 0], 9.0)));
    cases.push(case(Step::Decode { batch: 3 }, batch("NaN between others", [0, 0, 0], nan)));
    let chunk = |label, row, values: Vec<f32>| Setup {
        label,
        rows: vec![[5, 37, 3, 0, 3, 99], row],
        values: vec![values, vec![nan; 5]],
        stops: vec![],
    };
    let step = Step::Prefill { tokens: 70, sequence: 1 };
    cases.push(case(step, chunk("chunk", [7, 61, 33, 0, 0, 99], plain.clone())));
    cases.push(case(step, chunk("chunk fills the cache", [7, 90, 70, 0, 0, 99], plain.clone())));
    cases.push(case(step, chunk("empty chunk", [7, 61, 0, 0, 0, 99], plain.clone())));
    cases.push(case(step, chunk("NaN after a chunk", [7, 61, 33, 0, 0, 99], vec![nan; 5])));
    cases
}

fn case(step: Step, setup: Setup) -> Case {
    let shape = shape();
    let mut c = CaseBuilder::new(&shape, step);
    // The positions above are around its end; nothing here is as long.
    c.session.capacity = 160;
    c.label(setup.label);
    let (batch, groups, ring) = (c.session.batch, shape.head_tiles(), c.session.ring);
    let mut stops = setup.stops;
    stops.resize(control::STOP_IDS, control::NO_ID);
    let ids: Vec<i32> = (0..batch).flat_map(|_| (0..groups).map(id)).collect();
    let buffers = Buffers {
        control: c.control_rows(&setup.rows),
        best_value: c.f32_with("best_value", [batch, groups], setup.values.concat()),
        best_id: c.i32("best_id", [batch, groups], ids),
        stop_ids: c.i32("stop_ids", [batch, control::STOP_IDS], stops.repeat(batch)),
        output: c.i32("output", [batch, ring], vec![-5; batch * ring]),
    };
    let launch = launch(&c.context(), buffers);
    c.build(launch, Tolerance::SAME)
}

#[cfg(test)]
mod unit {
    use super::*;
    use crate::conformance::{Contents, run_face, run_reference};
    use crate::cpu::Numerics;

    /// Control row of the only sequence and the output ring, from the reference and the CPU face.
    fn outcomes(label: &str) -> Vec<(Vec<i32>, Vec<i32>)> {
        let cases = cases();
        let case = cases.iter().find(|c| c.name.ends_with(&format!(", {label})"))).unwrap();
        let ints = |out: &[Contents], name: &str| match &out
            [case.plan.buffers().find(name).unwrap().index()]
        {
            Contents::Int(values) => values.clone(),
            other => panic!("{name} is {other:?}"),
        };
        [run_reference(case), run_face(case, Numerics::Exact)]
            .iter()
            .map(|out| (ints(out, "control"), ints(out, "output")))
            .collect()
    }

    fn expect(label: &str, row: [i32; 6], ring: &[(usize, i32)]) {
        for (control, output) in outcomes(label) {
            assert_eq!(control[control.len() - 8..][..6], row, "{label}");
            let mut want = vec![-5; output.len()];
            ring.iter().for_each(|&(slot, token)| want[slot] = token);
            assert_eq!(output, want, "{label}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "all cases, built anew for every line")]
    fn sample_advances_the_sequence_and_fills_the_ring() {
        expect("plain", [id(2), 38, 0, 0, 4, 99], &[(3, id(2))]);
        expect("ties go to the lowest id", [id(1), 38, 0, 0, 4, 99], &[(3, id(1))]);
        expect("ring wraps", [id(2), 38, 0, 0, 14, 99], &[(5, id(2))]);
        expect("chunk", [id(2), 94, 33, 0, 1, 99], &[(8, id(2))]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "all cases, built anew for every line")]
    fn sample_halts_on_stop_id_limit_and_capacity() {
        expect("stop id", [id(2), 38, 0, 1, 4, 99], &[(3, id(2))]);
        expect("another stop id", [id(2), 38, 0, 0, 4, 99], &[(3, id(2))]);
        expect("limit reached", [id(2), 38, 0, 1, 99, 99], &[(2, id(2))]);
        expect("limit not reached", [id(2), 38, 0, 0, 98, 99], &[(1, id(2))]);
        expect("cache full", [id(2), 160, 0, 1, 4, 99], &[(3, id(2))]);
        expect("one position left", [id(2), 159, 0, 0, 4, 99], &[(3, id(2))]);
        expect("chunk fills the cache", [id(2), 160, 70, 1, 1, 99], &[(8, id(2))]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "all cases, built anew for every line")]
    fn sample_chooses_nothing_from_non_finite_logits() {
        for label in ["NaN first", "NaN behind the largest", "infinite", "nothing to choose"] {
            expect(label, [5, 37, 0, control::NON_FINITE, 3, 99], &[]);
        }
        expect("NaN after a chunk", [7, 61, 33, control::NON_FINITE, 0, 99], &[]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "all cases, built anew for every line")]
    fn sample_leaves_halted_sequences_and_empty_chunks_alone() {
        expect("halted", [5, 37, 0, 1, 3, 99], &[]);
        expect("halted over NaN", [5, 37, 0, 2, 3, 99], &[]);
        expect("empty chunk", [7, 61, 0, 0, 0, 99], &[]);
    }
}
