//! Whose logits and whose saved state: never another sequence's, another engine's, another step's.

#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;

use lily_cpu::Numerics;
use lily_model::engine::{Engine, EngineError, EngineOptions, Generation};
use lily_model::plan::PrefillEnd;
use lily_tests::spoil::Spoiled;
use lily_tests::{Golden, cpu, load};

fn options() -> EngineOptions {
    EngineOptions { context: 96, chunk: 64, batch: 3, ..EngineOptions::default() }
}

fn exact(name: &str, options: EngineOptions) -> Engine {
    Golden::open(name).engine(cpu(Numerics::Exact), options)
}

/// R31: rows of the logits buffer are shared; a sequence never gets what another one left there.
#[test]
fn logits_are_those_of_the_sequence_or_an_error() {
    let mut engine = exact("generic", options());
    let (a, b) = (engine.open().unwrap(), engine.open().unwrap());
    let none = |engine: &mut Engine, sequence| {
        assert!(matches!(engine.logits(sequence), Err(EngineError::NoLogits(_))));
    };
    none(&mut engine, a);
    engine.prefill(a, &[1, 2], PrefillEnd::More).unwrap();
    none(&mut engine, a);
    engine.prefill(b, &[7, 8, 9], PrefillEnd::Logits).unwrap();
    let of_b = engine.logits(b).unwrap();
    // A step of the first sequence takes the row that the chunk of the second one used.
    engine.step(a, 3).unwrap();
    none(&mut engine, b);
    let of_a = engine.logits(a).unwrap();
    engine.step(b, 10).unwrap();
    assert_eq!(engine.logits(a).unwrap(), of_a);
    assert_ne!(engine.logits(b).unwrap(), of_b);
    engine.prefill(b, &[4], PrefillEnd::Logits).unwrap();
    none(&mut engine, a);
    let saved = engine.snapshot(b).unwrap();
    engine.restore(a, &saved).unwrap();
    none(&mut engine, a);
    engine.step(a, 5).unwrap();
    engine.step_back(a, 5).unwrap();
    none(&mut engine, a);
}

#[test]
fn logits_after_a_generation_are_those_of_its_last_token_or_an_error() {
    for (steps_ahead, limit) in [(0, 1), (0, 5), (2, 5)] {
        let mut engine = exact("generic", EngineOptions { run_ahead: 2, steps_ahead, ..options() });
        let sequence = engine.open().unwrap();
        let mut out = Vec::new();
        // The caller ends it, so that steps were submitted beyond the last token.
        let generation = Generation { limit: 9, ..Generation::default() };
        engine
            .generate(sequence, &[3, 1, 4], &generation, &mut |progress| {
                out.extend(progress.token());
                if out.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        let tokens = engine.tokens(sequence).unwrap().to_vec();
        let Ok(logits) = engine.logits(sequence) else {
            assert!(steps_ahead > 0 && limit > 1, "{limit} tokens, {steps_ahead} ahead");
            continue;
        };
        let cold = engine.open().unwrap();
        engine.prefill(cold, &tokens, PrefillEnd::Logits).unwrap();
        let want = engine.logits(cold).unwrap();
        let difference = lily_tests::max_difference(&logits, &want);
        assert!(difference < 1e-3, "{limit} tokens, {steps_ahead} ahead: {difference}");
    }
}

#[test]
fn saved_states_of_other_models_and_engines_are_refused() {
    let mut engine = exact("generic", options());
    let a = engine.open().unwrap();
    engine.prefill(a, &[1, 2, 3], PrefillEnd::More).unwrap();
    let saved = engine.snapshot(a).unwrap();
    let golden = Golden::open("generic");
    for mut other in [exact("odd", options()), golden.engine(cpu(Numerics::Int8), options())] {
        let sequence = other.open().unwrap();
        let result = other.restore(sequence, &saved);
        assert!(matches!(result, Err(EngineError::ForeignSnapshot)), "{result:?}");
        other.prefill(sequence, &[1], PrefillEnd::Logits).unwrap();
    }
    let mut small = exact("generic", EngineOptions { context: 2, ..options() });
    let sequence = small.open().unwrap();
    let result = small.restore(sequence, &saved);
    assert!(matches!(result, Err(EngineError::ContextFull { needed: 3, context: 2 })));

    // An engine of another context, batch and number of steps to take back gives the same bits.
    let twin = EngineOptions { context: 64, batch: 1, chunk: 8, run_ahead: 4, ..options() };
    let mut twin = exact("generic", twin);
    let sequence = twin.open().unwrap();
    twin.restore(sequence, &saved).unwrap();
    twin.step(sequence, 9).unwrap();
    engine.step(a, 9).unwrap();
    assert_eq!(twin.logits(sequence).unwrap(), engine.logits(a).unwrap());
}

/// Memory is not cleared between sequences: what a lost one left behind is not part of the next.
#[test]
fn a_state_is_saved_whatever_an_earlier_sequence_left_behind() {
    let golden = Golden::open("generic");
    let spoiled = Spoiled::new(&golden).poison_token(300);
    let options = EngineOptions { run_ahead: 5, ..options() };
    let mut engine = load(spoiled.path(), cpu(Numerics::Exact), options).unwrap();
    for length in [1, 2, 3, 4, 5, 9] {
        let sequence = engine.open().unwrap();
        for _ in 0..12 {
            engine.step(sequence, 300).unwrap();
        }
        assert!(matches!(engine.snapshot(sequence), Err(EngineError::PoisonedState { .. })));
        engine.close(sequence);
        let sequence = engine.open().unwrap();
        let ids: Vec<u32> = (1..=length).collect();
        engine.prefill(sequence, &ids, PrefillEnd::More).unwrap();
        let copy = engine.fork(sequence).unwrap();
        engine.step(copy, 4).unwrap();
        let got = engine.logits(copy).unwrap();
        engine.step(sequence, 4).unwrap();
        assert_eq!(got, engine.logits(sequence).unwrap(), "{length} tokens");
        engine.close(copy);
        engine.close(sequence);
    }
}

#[test]
fn fork_needs_a_free_sequence_and_leaves_the_source_alone() {
    let mut engine = exact("generic", EngineOptions { batch: 2, ..options() });
    let a = engine.open().unwrap();
    engine.prefill(a, &[1, 2, 3], PrefillEnd::More).unwrap();
    let b = engine.fork(a).unwrap();
    assert!(matches!(engine.fork(a), Err(EngineError::NoSequence(2))));
    engine.step(a, 4).unwrap();
    let want = engine.logits(a).unwrap();
    engine.step(b, 4).unwrap();
    assert_eq!(engine.logits(b).unwrap(), want);
}
