//! Sessions: whatever path leads to a position, the next logits are those of a cold run.

#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;

use lily_cpu::Numerics;
use lily_model::engine::{
    Engine, EngineError, EngineOptions, Finish, Generation, Progress, SequenceId,
};
use lily_model::plan::PrefillEnd;
use lily_model::sampling::Sampling;
use lily_tests::{Golden, cpu, max_difference};

const EXACT_LOGIT: f32 = 1e-3;

fn options() -> EngineOptions {
    EngineOptions { context: 256, chunk: 64, ..EngineOptions::default() }
}

fn exact(golden: &Golden, options: EngineOptions) -> Engine {
    golden.engine(cpu(Numerics::Exact), options)
}

fn greedy(limit: usize, stop_ids: &[u32]) -> Generation {
    Generation { limit, stop_ids: stop_ids.to_vec(), ..Generation::default() }
}

/// Generates and returns the tokens; `stop_after` cancels.
fn generate(
    engine: &mut Engine,
    sequence: SequenceId,
    prompt: &[u32],
    generation: &Generation,
    stop_after: usize,
) -> (Vec<u32>, Finish) {
    let mut out = Vec::new();
    let finish = engine
        .generate(sequence, prompt, generation, &mut |progress| {
            out.extend(progress.token());
            if out.len() == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    (out, finish)
}

/// Logits after feeding `ids` to a fresh sequence.
fn cold_logits(engine: &mut Engine, ids: &[u32]) -> Vec<f32> {
    let sequence = engine.open().unwrap();
    engine.prefill(sequence, ids, PrefillEnd::Logits).unwrap();
    let logits = engine.logits(sequence).unwrap();
    engine.close(sequence);
    logits
}

/// The state of `sequence` is that of a cold run over its tokens: the next step agrees.
fn assert_like_cold(engine: &mut Engine, sequence: SequenceId, label: &str) {
    let mut ids = engine.tokens(sequence).unwrap().to_vec();
    let next = 17;
    engine.step(sequence, next).unwrap();
    let got = engine.logits(sequence).unwrap();
    ids.push(next);
    let want = cold_logits(engine, &ids);
    let difference = max_difference(&got, &want);
    assert!(difference <= EXACT_LOGIT, "{label}: a logit differs by {difference:e}");
}

#[test]
fn a_restored_or_forked_sequence_continues_with_the_same_bits() {
    let golden = Golden::open("odd");
    let mut engine = exact(&golden, EngineOptions { batch: 3, ..options() });
    let ids = &golden.prompts.prompts[2];
    let a = engine.open().unwrap();
    engine.prefill(a, ids, PrefillEnd::More).unwrap();
    for id in [3, 1, 4] {
        engine.step(a, id).unwrap();
    }
    let saved = engine.snapshot(a).unwrap();
    assert_eq!(saved.tokens().len(), ids.len() + 3);
    assert!(saved.bytes() > 0);
    let b = engine.fork(a).unwrap();
    let steps = |engine: &mut Engine, sequence| {
        let mut all = Vec::new();
        for id in [5, 9, 2, 6] {
            engine.step(sequence, id).unwrap();
            all.extend(engine.logits(sequence).unwrap().into_iter().map(f32::to_bits));
        }
        all
    };
    let want = steps(&mut engine, a);
    assert_eq!(steps(&mut engine, b), want, "forked");
    engine.restore(a, &saved).unwrap();
    assert_eq!(steps(&mut engine, a), want, "restored");
    engine.close(a);
    let c = engine.open().unwrap();
    engine.restore(c, &saved).unwrap();
    assert_eq!(engine.tokens(c).unwrap(), saved.tokens());
    assert_eq!(steps(&mut engine, c), want, "restored into another sequence");
    assert_like_cold(&mut engine, c, "after restore");
}

#[test]
fn steps_are_taken_back_as_far_as_the_ring_reaches() {
    let golden = Golden::open("generic");
    for run_ahead in [1, 2, 3, 5] {
        let mut engine = exact(&golden, EngineOptions { batch: 2, run_ahead, ..options() });
        let ids = &golden.prompts.prompts[1];
        let sequence = engine.open().unwrap();
        engine.prefill(sequence, ids, PrefillEnd::More).unwrap();
        for id in 20..30 {
            engine.step(sequence, id).unwrap();
        }
        let position = ids.len() + 10;
        let too_far = engine.step_back(sequence, position - run_ahead - 1);
        assert!(matches!(too_far, Err(EngineError::StepBack { .. })), "{too_far:?}");
        for wrong in 0..run_ahead {
            engine.step_back(sequence, position - wrong - 1).unwrap();
        }
        assert_eq!(engine.tokens(sequence).unwrap().len(), position - run_ahead);
        assert_like_cold(&mut engine, sequence, &format!("run ahead {run_ahead}"));
        engine.close(sequence);
    }
}

#[test]
fn a_prefill_chunk_cannot_be_taken_back() {
    let golden = Golden::open("generic");
    let mut engine = exact(&golden, options());
    let sequence = engine.open().unwrap();
    engine.prefill(sequence, &golden.prompts.prompts[2], PrefillEnd::More).unwrap();
    let result = engine.step_back(sequence, 60);
    assert!(matches!(result, Err(EngineError::StepBack { from: 64, to: 60, oldest: 64 })));
}

#[test]
fn running_ahead_gives_the_same_tokens_and_leaves_the_state_of_a_cold_run() {
    for (name, run_ahead, steps_ahead) in
        [("generic", 1, 0), ("generic", 1, 1), ("generic", 3, 2), ("heads", 5, 5)]
    {
        let golden = Golden::open(name);
        let mut engine =
            exact(&golden, EngineOptions { batch: 2, run_ahead, steps_ahead, ..options() });
        for (ids, want) in golden.prompts.prompts.iter().zip(&golden.prompts.greedy) {
            let label = format!("{steps_ahead} steps ahead, prompt of {}", ids.len());
            let sequence = engine.open().unwrap();
            let (got, finish) =
                generate(&mut engine, sequence, ids, &greedy(want.len(), &[]), usize::MAX);
            assert_eq!((&got, finish), (want, Finish::Length), "{label}");
            engine.close(sequence);

            // The caller stops in the middle: steps beyond are taken back.
            let sequence = engine.open().unwrap();
            let (got, finish) = generate(&mut engine, sequence, ids, &greedy(30, &[]), 9);
            assert_eq!((&got[..], finish), (&want[..9], Finish::Cancelled), "{label}");
            assert_eq!(engine.pending(sequence).unwrap(), Some(want[8]));
            let tokens = [ids, &want[..8]].concat();
            assert_eq!(engine.tokens(sequence).unwrap(), tokens, "{label}");
            assert_like_cold(&mut engine, sequence, &label);
            engine.close(sequence);
        }
    }
}

#[test]
fn a_stop_token_halts_the_device_and_leaves_the_state_of_a_cold_run() {
    let golden = Golden::open("heads");
    for steps_ahead in [0, 2] {
        let base = EngineOptions { batch: 2, run_ahead: 3, steps_ahead, ..options() };
        let mut engine = exact(&golden, base);
        let (ids, want) = (&golden.prompts.prompts[1], &golden.prompts.greedy[1]);
        let stop = want[6];
        let first = want.iter().position(|&id| id == stop).unwrap();
        let sequence = engine.open().unwrap();
        let (got, finish) =
            generate(&mut engine, sequence, ids, &greedy(30, &[400, stop]), usize::MAX);
        assert_eq!((&got[..], finish), (&want[..=first], Finish::Stop(stop)));
        assert_eq!(engine.pending(sequence).unwrap(), Some(stop));
        assert_eq!(engine.tokens(sequence).unwrap().len(), ids.len() + first);
        assert_like_cold(&mut engine, sequence, "after a stop token");
    }
}

#[test]
fn more_stop_tokens_than_the_device_holds_are_honoured_by_the_host() {
    let golden = Golden::open("heads");
    let mut engine = exact(&golden, options());
    let (ids, want) = (&golden.prompts.prompts[1], &golden.prompts.greedy[1]);
    let mut stops: Vec<u32> = (0..512).filter(|id| !want.contains(id)).take(20).collect();
    stops.push(want[3]);
    let sequence = engine.open().unwrap();
    let (got, finish) = generate(&mut engine, sequence, ids, &greedy(30, &stops), usize::MAX);
    let first = want.iter().position(|&id| id == want[3]).unwrap();
    assert_eq!((&got[..], finish), (&want[..=first], Finish::Stop(want[3])));
}

#[test]
fn a_full_context_ends_the_text_and_a_longer_prompt_is_refused() {
    let golden = Golden::open("heads");
    for steps_ahead in [0, 1] {
        let base = EngineOptions { context: 72, steps_ahead, ..options() };
        let mut engine = exact(&golden, base);
        let (ids, want) = (&golden.prompts.prompts[2], &golden.prompts.greedy[2]);
        let sequence = engine.open().unwrap();
        let (got, finish) = generate(&mut engine, sequence, ids, &greedy(100, &[]), usize::MAX);
        assert_eq!((&got[..], finish), (&want[..9], Finish::Length));
        assert_eq!(engine.tokens(sequence).unwrap().len(), 72);
        let full = engine.step(sequence, 1);
        assert!(matches!(full, Err(EngineError::ContextFull { needed: 73, context: 72 })));
        engine.close(sequence);
        let sequence = engine.open().unwrap();
        let long = engine.prefill(sequence, &golden.prompts.prompts[3], PrefillEnd::More);
        assert!(matches!(long, Err(EngineError::ContextFull { needed: 200, context: 72 })));
    }
}

#[test]
fn work_ends_after_the_chunk_in_which_the_caller_stops() {
    let golden = Golden::open("heads");
    let mut engine = exact(&golden, EngineOptions { chunk: 16, batch: 2, ..options() });
    let ids = &golden.prompts.prompts[2];
    for sampling in [Sampling::greedy(), Sampling { temperature: 1.0, ..Sampling::greedy() }] {
        let sequence = engine.open().unwrap();
        let generation = Generation { limit: 9, sampling, ..Generation::default() };
        let mut seen = Vec::new();
        let finish = engine.generate(sequence, ids, &generation, &mut |progress| {
            seen.push(progress);
            if seen.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(finish.unwrap(), Finish::Cancelled);
        assert_eq!(seen, [Progress::Prefilled(16), Progress::Prefilled(32)]);
        assert_eq!(engine.tokens(sequence).unwrap(), &ids[..32]);
        assert_like_cold(&mut engine, sequence, "after a cancelled prompt");
        engine.close(sequence);
    }
}

#[test]
fn sequences_of_one_engine_do_not_disturb_each_other() {
    let golden = Golden::open("heads");
    let mut engine = exact(&golden, EngineOptions { batch: 3, ..options() });
    let alone: Vec<Vec<f32>> = golden.prompts.prompts[1..]
        .iter()
        .map(|ids| {
            let with_steps = [&ids[..], &[7, 8, 9]].concat();
            cold_logits(&mut engine, &with_steps)
        })
        .collect();
    let open: Vec<SequenceId> = (0..3).map(|_| engine.open().unwrap()).collect();
    assert!(matches!(engine.open(), Err(EngineError::NoSequence(3))));
    for (&sequence, ids) in open.iter().zip(&golden.prompts.prompts[1..]) {
        engine.prefill(sequence, ids, PrefillEnd::More).unwrap();
    }
    for id in [7, 8, 9] {
        for &sequence in &open {
            engine.step(sequence, id).unwrap();
            if id == 9 {
                let got = engine.logits(sequence).unwrap();
                let difference = max_difference(&got, &alone[sequence.index()]);
                assert!(
                    difference <= EXACT_LOGIT,
                    "sequence {sequence:?} differs by {difference:e}"
                );
            }
        }
    }
}

#[test]
fn sampling_with_a_seed_repeats_and_every_token_can_be_drawn() {
    let golden = Golden::open("generic");
    let mut engine = exact(&golden, options());
    let run = |engine: &mut Engine, seed| {
        let sampling = Sampling { temperature: 1.0, top_k: 20, seed, ..Sampling::greedy() };
        let generation = Generation { limit: 24, sampling, ..Generation::default() };
        let sequence = engine.open().unwrap();
        let ids = &golden.prompts.prompts[1];
        let (out, _) = generate(engine, sequence, ids, &generation, usize::MAX);
        engine.close(sequence);
        out
    };
    let (first, again, other) = (run(&mut engine, 1), run(&mut engine, 1), run(&mut engine, 2));
    assert_eq!(first, again);
    assert_ne!(first, other);
    assert_eq!(first.len(), 24);
}

#[test]
fn bad_input_is_refused_and_the_sequence_stays_usable() {
    let golden = Golden::open("generic");
    let mut engine = exact(&golden, options());
    let sequence = engine.open().unwrap();
    let vocab = engine.shape().vocab as u32;
    assert!(matches!(
        engine.prefill(sequence, &[1, vocab], PrefillEnd::More),
        Err(EngineError::Token { index: 1, .. })
    ));
    let empty = engine.prefill(sequence, &[], PrefillEnd::More);
    assert!(matches!(empty, Err(EngineError::EmptyPrompt)));
    engine.prefill(sequence, &[1, 2], PrefillEnd::Logits).unwrap();
    engine.close(sequence);
    assert!(matches!(engine.tokens(sequence), Err(EngineError::BadSequence(0))));
}
