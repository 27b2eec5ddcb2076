//! Conformance cases.

use lily_plan::{Step, control};

use super::{Buffers, Draw, MOST, launch};
use crate::conformance::{Case, CaseBuilder, Tolerance, few, small_shapes};
use crate::shape::ModelShape;

/// What a case puts into the buffers. Sequences that have a logit row `value(row, id)`; a chunk has row
/// 0 alone.
struct Setup<'a> {
    label: String,
    shape: ModelShape,
    step: Step,
    /// Control rows `[token, position, count, halt, produced, limit]`, one for each sequence.
    rows: Vec<[i32; 6]>,
    /// Rules, one for each sequence.
    rules: Vec<Draw>,
    value: &'a dyn Fn(usize, usize) -> f32,
    stops: Vec<i32>,
}

/// Ids of a vocabulary of five groups of 64, the last with 10 ids of padding and 20 that do not exist.
fn few_groups() -> ModelShape {
    ModelShape { vocab: 300, vocab_used: 290, ..small_shapes()[0].clone() }
}

/// 200 groups of 32, the last three padding alone.
fn many_groups() -> ModelShape {
    ModelShape { vocab: 6400, vocab_used: 6290, ..small_shapes()[0].clone() }
}

/// A number in −8..8 for an index, the same every time.
fn noise(index: usize) -> f32 {
    let mut z = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((z >> 40) as f32 / (1 << 24) as f32 - 0.5) * 16.0
}

const GO: [i32; 6] = [5, 37, 0, 0, 3, 99];

/// The settings of the reference checkpoint.
fn usual(seed: u64) -> Draw {
    Draw::new(1.0, 20, 0.95, 0.0, seed)
}

/// All cases of this kernel. The cache has 160 positions, the ring 8 slots.
pub fn cases() -> Vec<Case> {
    let spread = |row: usize, id: usize| noise(row * 10_007 + id);
    let alone = |label: &str, shape: &ModelShape, rule, value: &dyn Fn(usize, usize) -> f32| {
        case(Setup {
            label: label.into(),
            shape: shape.clone(),
            step: Step::Decode { batch: 1 },
            rows: vec![GO],
            rules: vec![rule],
            value,
            stops: vec![],
        })
    };
    let mut cases = Vec::new();
    for shape in &[few_groups(), many_groups()] {
        for (seed, rule) in few([
            ("usual", usual(1)),
            ("greedy", Draw::GREEDY),
            ("usual, another seed", usual(u64::MAX / 3)),
            ("hot, 64 candidates", Draw::new(8.0, MOST, 1.0, 0.0, 2)),
            ("hot, 63 candidates, top-p", Draw::new(50.0, 63, 0.6, 0.0, 3)),
            ("hot, min-p", Draw::new(20.0, 33, 0.9, 0.7, 4)),
            ("cold", Draw::new(0.01, 40, 1.0, 0.0, 5)),
            ("very cold", Draw::new(f32::MIN_POSITIVE, 40, 1.0, 0.0, 6)),
            ("two candidates", Draw::new(1.0, 2, 1.0, 0.0, 7)),
        ]) {
            cases.push(alone(seed, shape, rule, &spread));
        }
        if cfg!(miri) {
            return cases;
        }
        let hot = |seed| Draw::new(100.0, 48, 1.0, 0.0, seed);
        cases.push(alone("all equal", shape, hot(8), &|_, _| 1.25));
        cases.push(alone("three values", shape, hot(9), &|_, id| (id * 7 % 3) as f32 - 1.0));
        cases.push(alone("zeros of both signs", shape, hot(10), &|_, id| [0.0, -0.0][id % 2]));
        cases.push(alone("all but one group infinitely low", shape, hot(11), &|_, id| {
            if (70..90).contains(&id) { noise(id) } else { f32::NEG_INFINITY }
        }));
        cases.push(alone("one group has the largest", shape, hot(12), &|_, id| {
            if (64..96).contains(&id) { 100.0 + noise(id) } else { noise(id) }
        }));
        cases.push(alone("rising", shape, hot(13), &|_, id| id as f32 / 64.0));
        cases.push(alone("neighbours in the last bit", shape, hot(14), &|_, id| {
            f32::from_bits(1.0f32.to_bits() + (id * 31 % 97) as u32)
        }));
        cases.push(alone("far apart", shape, usual(15), &|_, id| 1e37 * noise(id)));
        let broken =
            |bad: f32, at: usize| move |_: usize, id: usize| if id == at { bad } else { noise(id) };
        cases.push(alone("NaN", shape, usual(16), &broken(f32::NAN, 201)));
        cases.push(alone("infinite", shape, usual(17), &broken(f32::INFINITY, 5)));
        cases.push(alone("NaN in padding", shape, usual(18), &broken(f32::NAN, shape.vocab - 1)));
        cases.push(alone("nothing", shape, usual(19), &|_, _| f32::NEG_INFINITY));
    }
    // More groups than threads.
    let large = ModelShape { vocab: 70_001, vocab_used: 69_990, ..few_groups() };
    cases.push(alone("usual", &large, usual(20), &spread));
    cases.push(alone("all equal", &large, Draw::new(1.0, MOST, 1.0, 0.0, 21), &|_, _| -3.0));
    let shape = few_groups();
    let few_ids = ModelShape { vocab: 70, vocab_used: 37, ..shape.clone() };
    cases.push(alone(
        "fewer ids than candidates",
        &few_ids,
        Draw::new(9.0, MOST, 1.0, 0.0, 1),
        &spread,
    ));
    let batch = |label: &str, halts: [i32; 3]| Setup {
        label: label.into(),
        shape: shape.clone(),
        step: Step::Decode { batch: 3 },
        rows: halts.iter().zip(0..).map(|(&h, i)| [5 + i, 37 + 9 * i, 0, h, i, 99]).collect(),
        rules: vec![usual(3), Draw::GREEDY, Draw::new(30.0, 50, 1.0, 0.0, 4)],
        value: &spread,
        stops: vec![],
    };
    cases.push(case(batch("three rules", [0, 0, 0])));
    cases.push(case(batch("the first is halted", [1, 0, 0])));
    let one_broken = |row, id| if row == 1 && id == 99 { f32::NAN } else { spread(row, id) };
    cases.push(case(Setup { value: &one_broken, ..batch("NaN between others", [0, 0, 0]) }));
    cases.push(case(Setup { rows: vec![[5, 37, 0, 0, 98, 99]; 3], ..batch("limit", [0; 3]) }));
    cases.push(case(Setup { rows: vec![[5, 159, 0, 0, 9, 99]; 3], ..batch("cache full", [0; 3]) }));
    let all_stop = |_: usize, id: usize| if id == 17 { 50.0 } else { spread(0, id) };
    let stopped = batch("stop id", [0, 0, 0]);
    cases.push(case(Setup { value: &all_stop, stops: vec![4, 17], ..stopped }));
    let chunk = |label: &str, row| Setup {
        step: Step::Prefill { tokens: 70, sequence: 1 },
        rows: vec![[5, 37, 3, 0, 3, 99], row],
        rules: vec![Draw::GREEDY, Draw::new(9.0, 30, 0.9, 0.01, 6)],
        ..batch(label, [0, 0, 0])
    };
    cases.push(case(chunk("chunk", [7, 61, 33, 0, 0, 99])));
    cases.push(case(chunk("chunk fills the cache", [7, 90, 70, 0, 0, 99])));
    cases.push(case(chunk("empty chunk", [7, 61, 0, 0, 0, 99])));
    cases.push(case(chunk("halted chunk", [7, 61, 33, 1, 0, 99])));
    cases
}

fn case(setup: Setup<'_>) -> Case {
    let Setup { label, shape, step, rows, rules, value, stops } = setup;
    let mut c = CaseBuilder::new(&shape, step);
    // The positions above are around its end; nothing here is as long.
    c.session.capacity = 160;
    c.label(&format!("vocabulary {}, {label}", shape.vocab));
    let (batch, groups, ring) = (c.session.batch, shape.head_tiles(), c.session.ring);
    let mut stop_ids = stops;
    stop_ids.resize(control::STOP_IDS, control::NO_ID);
    let logits: Vec<f32> =
        (0..batch).flat_map(|row| (0..shape.vocab).map(move |id| value(row, id))).collect();
    // What the head leaves.
    let best = |group: usize, logits: &[f32]| {
        let first = group * shape.head_rows();
        let used = &logits[first.min(shape.vocab_used)..];
        let used = &used[..shape.head_rows().min(shape.vocab_used.saturating_sub(first))];
        let nan = used.iter().any(|l| l.is_nan());
        if nan { f32::NAN } else { used.iter().copied().fold(f32::NEG_INFINITY, f32::max) }
    };
    let bests = logits.chunks(shape.vocab).flat_map(|row| (0..groups).map(|g| best(g, row)));
    let bests = bests.collect();
    let rules: Vec<i32> = rules.iter().flat_map(Draw::words).collect();
    let buffers = Buffers {
        control: c.control_rows(&rows),
        best_value: c.f32_with("best_value", [batch, groups], bests),
        logits: c.f32_with("logits", [batch, shape.vocab], logits),
        sampling: c.i32("sampling", [batch, Draw::WORDS], rules),
        stop_ids: c.i32("stop_ids", [batch, control::STOP_IDS], stop_ids.repeat(batch)),
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

    /// The token that a case gives, from the reference and the CPU face; `None` if it halts first.
    fn tokens(case: &Case) -> [Option<i32>; 2] {
        let control = case.plan.buffers().find("control").unwrap().index();
        [run_reference(case), run_face(case, Numerics::Exact)].map(|out| {
            let Contents::Int(words) = &out[control] else { panic!("control is not i32") };
            (words[control::HALT] != control::NON_FINITE).then_some(words[control::TOKEN])
        })
    }

    fn one(rule: Draw, position: i32, value: &dyn Fn(usize, usize) -> f32) -> [Option<i32>; 2] {
        tokens(&case(Setup {
            label: "unit".into(),
            shape: few_groups(),
            step: Step::Decode { batch: 1 },
            rows: vec![[5, position, 0, 0, 3, 99]],
            rules: vec![rule],
            value,
            stops: vec![],
        }))
    }

    #[test]
    #[cfg_attr(miri, ignore = "the interpreter over a whole vocabulary, many times")]
    fn draw_with_one_candidate_is_greedy_and_never_offers_padding() {
        let value = |_: usize, id: usize| match id {
            71 | 200 => 3.0,
            290.. => 9.0,
            _ => noise(id).min(2.0),
        };
        assert_eq!(one(Draw::GREEDY, 10, &value), [Some(71); 2]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "the interpreter over a whole vocabulary, many times")]
    fn draw_depends_on_seed_and_position_and_nothing_else() {
        let value = |_: usize, id: usize| noise(id) / 4.0;
        let text = |seed| -> Vec<[Option<i32>; 2]> {
            (0..20).map(|p| one(Draw::new(2.0, 50, 1.0, 0.0, seed), p, &value)).collect()
        };
        let first = text(3);
        assert_eq!(first, text(3));
        assert_ne!(first, text(4));
        assert!(first.iter().all(|[reference, face]| reference == face));
        assert!(first.iter().any(|t| *t != first[0]));
    }

    #[test]
    #[cfg_attr(miri, ignore = "the interpreter over a whole vocabulary, many times")]
    fn draw_takes_only_what_the_filters_leave() {
        // Four ids with these probabilities; the others have none.
        let value = |_: usize, id: usize| match id {
            7 => 0.5f32.ln(),
            100 => 0.3f32.ln(),
            101 => 0.15f32.ln(),
            289 => 0.05f32.ln(),
            _ => -1000.0,
        };
        let seen = |rule: &dyn Fn(u64) -> Draw| {
            let mut seen: Vec<i32> =
                (0..60).flat_map(|seed| one(rule(seed), 12, &value)).flatten().collect();
            seen.sort_unstable();
            seen.dedup();
            seen
        };
        assert_eq!(seen(&|seed| Draw::new(1.0, 2, 1.0, 0.0, seed)), [7, 100]);
        assert_eq!(seen(&|seed| Draw::new(1.0, 64, 0.75, 0.0, seed)), [7, 100]);
        assert_eq!(seen(&|seed| Draw::new(1.0, 64, 1.0, 0.2, seed)), [7, 100, 101]);
        assert_eq!(seen(&|seed| Draw::new(1.0, 64, 1.0, 0.0, seed)), [7, 100, 101, 289]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "the interpreter over a whole vocabulary, many times")]
    fn draw_chooses_nothing_from_non_finite_logits() {
        for bad in [f32::NAN, f32::INFINITY] {
            let value = |_: usize, id: usize| if id == 288 { bad } else { noise(id) };
            assert_eq!(one(usual(1), 3, &value), [None; 2]);
        }
        assert_eq!(one(usual(1), 3, &|_, _| f32::NEG_INFINITY), [None; 2]);
    }
}
