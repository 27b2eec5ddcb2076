//! The engine on the interpreter: every plan variant, with every launch held to its declared ranges.

#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;

use lily_model::engine::{Engine, EngineOptions, Generation, Progress};
use lily_model::plan::{Choice, PrefillEnd};
use lily_model::sampling::Sampling;
use lily_plan::{Fusions, Precision};
use lily_tests::rig::{Rig, all_fusions};
use lily_tests::{Golden, argmax, interpreter, max_difference, relative_rms};

const EXACT_LOGIT: f32 = 1e-3;
/// Tokens generated: one by the prefill plan, the others by decode plans.
const LIMIT: usize = 5;

fn options(chunk: usize) -> EngineOptions {
    EngineOptions { context: 96, chunk, ..EngineOptions::default() }
}

fn engine(golden: &Golden, precision: Precision, options: EngineOptions) -> Engine {
    golden.engine(interpreter(precision, true), options)
}

fn greedy(engine: &mut Engine, ids: &[u32]) -> Vec<u32> {
    let sequence = engine.open().unwrap();
    let sampling = Sampling::greedy();
    let generation = Generation { limit: LIMIT, sampling, ..Generation::default() };
    let mut out = Vec::new();
    let mut collect = |progress: Progress| {
        out.extend(progress.token());
        ControlFlow::Continue(())
    };
    engine.generate(sequence, ids, &generation, &mut collect).unwrap();
    out
}

#[test]
fn every_combination_of_fusions_gives_the_golden_ids() {
    for name in ["generic", "odd"] {
        let golden = Golden::open(name);
        let (ids, want) = (&golden.prompts.prompts[1], &golden.prompts.greedy[1]);
        for fusions in all_fusions() {
            for (run_ahead, batch) in [(1, 2), (2, 3)] {
                let base = options(7);
                let steps_ahead = run_ahead;
                let fusions = Some(fusions);
                let options = EngineOptions { batch, run_ahead, steps_ahead, fusions, ..base };
                let mut engine = engine(&golden, Precision::EXACT, options);
                // All sequences but the last stay open: each has its own row.
                for _ in 1..batch {
                    engine.open().unwrap();
                }
                let label = format!("{name}, {fusions:?}, {run_ahead} ahead, batch of {batch}");
                assert_eq!(greedy(&mut engine, ids), want[..LIMIT], "{label}");
            }
        }
    }
}

#[test]
fn every_chunk_size_gives_the_golden_logits_and_ids() {
    for name in ["generic", "odd"] {
        let golden = Golden::open(name);
        for chunk in [7, 64] {
            let base = EngineOptions { all_logits: true, ..options(chunk) };
            let mut engine = engine(&golden, Precision::EXACT, base);
            let (ids, want) = (&golden.prompts.prompts[2], &golden.prompts.greedy[2]);
            let sequence = engine.open().unwrap();
            let mut logits = Vec::new();
            engine.evaluate(sequence, ids, &mut |_, rows| logits.extend_from_slice(rows)).unwrap();
            engine.close(sequence);
            let difference = max_difference(&logits, &golden.logits[2]);
            assert!(difference <= EXACT_LOGIT, "{name}: a logit differs by {difference:e}");
            assert_eq!(greedy(&mut engine, ids), want[..LIMIT], "{name}, chunks of {chunk}");
        }
    }
}

#[test]
fn sequences_that_decode_together_give_the_golden_ids() {
    for name in ["generic", "odd"] {
        let golden = Golden::open(name);
        let rig = Rig::new(&golden, Precision::EXACT, 3, 40);
        let mut machine = rig.start(interpreter(Precision::EXACT, true));
        for sequence in 0..3 {
            machine.prefill(sequence, &golden.prompts.prompts[sequence]);
        }
        let started = machine.all_bytes();
        for fusions in all_fusions() {
            machine.set_all_bytes(&started);
            // All three are far from the next bucket of lengths: one plan serves them.
            let plan = machine.compile(&rig.decode(64 + LIMIT, Choice::Device, fusions));
            for _ in 1..LIMIT {
                machine.run(plan);
            }
            for sequence in 0..3 {
                let want = &golden.prompts.greedy[sequence][..LIMIT];
                assert_eq!(machine.output(sequence, LIMIT), want, "{name}, {fusions:?}");
            }
        }
    }
}

/// The bar of bfloat16 devices: see the numbers section of docs/design.md. A near tie of the router
/// may fall differently and moves every logit of its token, so a few clear choices may be lost.
#[test]
fn bfloat16_inputs_and_cache_stay_within_their_bar() {
    let fused = Fusions { topk: true, prepare: true, short: true };
    let (mut clear, mut same) = (0, 0);
    for (name, chunk, fusions) in
        [("generic", 7, fused), ("generic", 64, Fusions::default()), ("odd", 64, fused)]
    {
        let golden = Golden::open(name);
        let (fusions, all_logits) = (Some(fusions), true);
        let options = EngineOptions { all_logits, fusions, batch: 2, ..options(chunk) };
        let mut engine = engine(&golden, Precision::BF16, options);
        let vocab = engine.shape().vocab;
        let sequence = engine.open().unwrap();
        let mut logits = Vec::new();
        let mut keep = |_, rows: &[f32]| logits.extend_from_slice(rows);
        engine.evaluate(sequence, &golden.prompts.prompts[2], &mut keep).unwrap();
        let want = &golden.logits[2];
        let rms = relative_rms(&logits, want);
        assert!(rms <= 0.03, "{name}, chunks of {chunk}: relative rms {rms}");
        let mut count = |gap: f32, got: &[f32], best: usize| {
            if gap > 0.5 {
                clear += 1;
                same += usize::from(argmax(got) == best);
            }
        };
        for (got, want) in logits.chunks(vocab).zip(want.chunks(vocab)) {
            let best = argmax(want);
            let others = want.iter().enumerate().filter(|(i, _)| *i != best);
            let second = others.map(|(_, v)| *v).fold(f32::NEG_INFINITY, f32::max);
            count(want[best] - second, got, best);
        }
        let (ids, gaps) = (&golden.prompts.greedy[2], &golden.prompts.greedy_logit_gaps[2]);
        for step in 1..8 {
            engine.step(sequence, ids[step - 1]).unwrap();
            count(gaps[step], &engine.logits(sequence).unwrap(), ids[step] as usize);
        }
    }
    assert!(clear > 100, "only {clear} clear choices");
    assert!(same * 100 >= clear * 98, "{same} of {clear} clear choices");
}

/// Nothing a prefill chunk leaves behind depends on what its buffers held before: poison included.
#[test]
fn a_sequence_that_was_used_before_gives_the_same_ids() {
    let golden = Golden::open("odd");
    let mut engine = engine(&golden, Precision::EXACT, options(7));
    let first = engine.open().unwrap();
    engine.prefill(first, &golden.prompts.prompts[2], PrefillEnd::More).unwrap();
    engine.close(first);
    let ids = &golden.prompts.prompts[1];
    assert_eq!(greedy(&mut engine, ids), golden.prompts.greedy[1][..LIMIT]);
}
