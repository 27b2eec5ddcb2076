//! Conformance cases.

use lily_plan::Step;

use super::{Buffers, launch};
use crate::conformance::{Case, CaseBuilder, Tolerance, prefill_steps, small_shapes};

/// All cases of this kernel: chunks with valid tokens, an empty one, a halted sequence.
pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> =
        prefill_steps().into_iter().map(|s| case(s, "valid tokens", None)).collect();
    let step = Step::Prefill { tokens: 7, sequence: 1 };
    cases.push(case(step, "no valid token", Some([4, 61, 0, 0, 0, 99])));
    cases.push(case(step, "halted", Some([4, 61, 7, 1, 0, 99])));
    cases
}

fn case(step: Step, label: &str, row: Option<[i32; 6]>) -> Case {
    let shape = &small_shapes()[0];
    let mut c = CaseBuilder::new(shape, step);
    c.label(label);
    let control = match row {
        Some(row) => c.control_rows(&[[5, 37, 3, 0, 3, 99], row]),
        None => c.control(),
    };
    let launch = launch(&c.context(), Buffers { control });
    c.build(launch, Tolerance::SAME)
}

#[cfg(test)]
mod unit {
    use super::super::Args;
    use crate::shape::StepArgs;

    #[test]
    fn only_the_position_moves_by_the_count() {
        let step = StepArgs { prefill: 1, rows: 16, sequence: 1 };
        let control = [9, 9, 9, 9, 9, 9, 9, 9, 1, 20, 13, 0, 4, 5, 6, 7];
        assert_eq!(Args { step }.next(&control), Some([1, 33, 13, 0, 4, 5, 6, 7]));
    }
}
