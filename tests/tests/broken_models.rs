//! Checkpoints whose numbers are damaged: refused when they are loaded, or the request that meets
//! the damage fails and nothing else does.

#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;

use lily_cpu::Numerics;
use lily_model::Checkpoint;
use lily_model::engine::{Engine, EngineError, EngineOptions, Generation, SequenceId};
use lily_model::plan::PrefillEnd;
use lily_model::sampling::{Sampling, SamplingError};
use lily_tests::spoil::{BF16_HUGE, BF16_INFINITY, BF16_NAN, Spoiled};
use lily_tests::{Golden, cpu, load};

fn options() -> EngineOptions {
    EngineOptions { context: 96, chunk: 64, batch: 3, ..EngineOptions::default() }
}

fn greedy() -> Sampling {
    Sampling::greedy()
}

/// Generates 12 tokens; returns those handed out, and the outcome.
fn generate(
    engine: &mut Engine,
    sequence: SequenceId,
    prompt: &[u32],
    sampling: Sampling,
) -> (Vec<u32>, Result<(), EngineError>) {
    let mut out = Vec::new();
    let generation = Generation { limit: 12, sampling, ..Generation::default() };
    let result = engine.generate(sequence, prompt, &generation, &mut |progress| {
        out.extend(progress.token());
        ControlFlow::Continue(())
    });
    (out, result.map(|_| ()))
}

/// R30, R36: a model whose first forward pass is not finite is refused when it is loaded.
#[test]
fn a_model_whose_first_pass_is_not_finite_is_refused_with_one_sentence() {
    let golden = Golden::open("generic");
    let layer = "language_model.model.layers.1";
    for (what, tensor, elements, value) in [
        ("NaN in a scale", "linear_attn.in_proj_qkv.scales", Some(5..6), BF16_NAN),
        ("infinity in a bias", "linear_attn.out_proj.biases", Some(0..1), BF16_INFINITY),
        ("huge scales", "linear_attn.in_proj_qkv.scales", None, BF16_HUGE),
        ("NaN in the shared expert", "mlp.shared_expert.down_proj.scales", Some(3..4), BF16_NAN),
    ] {
        let spoiled = Spoiled::new(&golden).fill(&format!("{layer}.{tensor}"), elements, value);
        for numerics in [Numerics::Exact, Numerics::Int8] {
            let error = load(spoiled.path(), cpu(numerics), options()).err();
            let Some(EngineError::Probe { .. }) = error else {
                panic!("{what}, {numerics:?}: need a refusal, found {error:?}");
            };
            let text = error.unwrap().to_string();
            assert!(text.starts_with("the first forward pass of this checkpoint gives "), "{text}");
            assert!(text.ends_with("download or convert them again") && !text.contains('\n'));
        }
    }
}

#[test]
fn logits_that_overflow_are_refused() {
    let golden = Golden::open("generic");
    let spoiled =
        Spoiled::new(&golden).fill("language_model.lm_head.scales", Some(0..2), BF16_HUGE);
    for numerics in [Numerics::Exact, Numerics::Int8] {
        let error = load(spoiled.path(), cpu(numerics), options()).err().unwrap().to_string();
        let value = ["NaN", "inf", "-inf"].map(|v| error.contains(&format!("the logit {v};")));
        assert!(value.contains(&true), "{error}");
    }
}

#[test]
fn small_tensors_that_are_not_finite_are_refused_by_name() {
    let golden = Golden::open("generic");
    let tensor = "language_model.model.layers.2.post_attention_layernorm.weight";
    for (value, text) in [(BF16_INFINITY, "inf"), (BF16_NAN, "NaN")] {
        let spoiled = Spoiled::new(&golden).fill(tensor, Some(7..8), value);
        let error = Checkpoint::open(spoiled.path()).unwrap_err().to_string();
        assert!(error.contains(tensor) && error.contains("element 7"), "{error}");
        assert!(error.contains(&format!("has {text} at")), "{error}");
    }
}

/// Steps of a healthy sequence, as bits.
fn steps(engine: &mut Engine, sequence: SequenceId) -> Vec<u32> {
    let mut bits = Vec::new();
    for id in [5, 9, 2] {
        engine.step(sequence, id).unwrap();
        bits.extend(engine.logits(sequence).unwrap().into_iter().map(f32::to_bits));
    }
    bits
}

/// The sequence is lost, a neighbour that was open goes on with the same bits, a new one works.
fn assert_only_this_one_is_lost(
    engine: &mut Engine,
    lost: SequenceId,
    neighbour: SequenceId,
    golden: &Golden,
    label: &str,
) {
    for result in [engine.step(lost, 1), engine.snapshot(lost).map(|_| ())] {
        assert!(matches!(result, Err(EngineError::BadSequence(_))), "{label}: {result:?}");
    }
    let healthy = engine.open().unwrap();
    engine.prefill(healthy, &golden.prompts.prompts[1], PrefillEnd::More).unwrap();
    let want = steps(engine, healthy);
    assert_eq!(steps(engine, neighbour), want, "{label}: the neighbour");
    engine.close(healthy);
    engine.close(lost);
    let again = engine.open().unwrap();
    assert_eq!(again, lost, "{label}: the lost sequence is free again");
    let (ids, result) = generate(engine, again, &golden.prompts.prompts[1], greedy());
    assert!(result.is_ok(), "{label}: {result:?}");
    assert_eq!(ids, golden.prompts.greedy[1][..12], "{label}");
}

#[test]
fn a_prompt_that_meets_damage_fails_with_a_reason_and_alone() {
    let golden = Golden::open("generic");
    let ids = &golden.prompts.prompts[1];
    let bad = (10..300).find(|id| !ids.contains(id)).unwrap();
    assert!(!golden.prompts.greedy[1].contains(&bad));
    let spoiled = Spoiled::new(&golden).poison_token(bad);
    let prompt = [1, 2, bad, 3];
    let sampled = Sampling { temperature: 1.0, ..greedy() };
    let few = Sampling { top_k: 20, ..sampled.clone() };
    let penalised = Sampling { presence_penalty: 0.5, ..greedy() };
    for sampling in [greedy(), sampled, few, penalised] {
        let mut engine = load(spoiled.path(), cpu(Numerics::Exact), options()).unwrap();
        let lost = engine.open().unwrap();
        let neighbour = engine.open().unwrap();
        engine.prefill(neighbour, ids, PrefillEnd::More).unwrap();
        let on_device = sampling.on_device().is_some();
        let (out, result) = generate(&mut engine, lost, &prompt, sampling);
        let label = format!("{result:?}");
        assert!(out.is_empty(), "{label}");
        match result {
            Err(EngineError::NotFinite { position: 4 }) if on_device => {}
            Err(EngineError::Sampling(SamplingError::NotFinite { .. })) if !on_device => {}
            _ => panic!("{label}"),
        }
        assert_only_this_one_is_lost(&mut engine, lost, neighbour, &golden, &label);
    }
}

#[test]
fn a_chosen_token_that_meets_damage_ends_the_request_behind_it() {
    let golden = Golden::open("generic");
    let (ids, want) = (&golden.prompts.prompts[1], &golden.prompts.greedy[1]);
    let good = |k: &usize| !want[..*k].contains(&want[*k]) && !ids.contains(&want[*k]);
    let at = (2..12).find(good).unwrap();
    let spoiled = Spoiled::new(&golden).poison_token(want[at]);
    for steps_ahead in [0, 1, 3] {
        let options = EngineOptions { run_ahead: 3, steps_ahead, ..options() };
        let mut engine = load(spoiled.path(), cpu(Numerics::Exact), options).unwrap();
        let sequence = engine.open().unwrap();
        let (out, result) = generate(&mut engine, sequence, ids, greedy());
        assert_eq!(out, want[..=at], "{steps_ahead} ahead");
        let position = ids.len() + at + 1;
        assert!(
            matches!(result, Err(EngineError::NotFinite { position: p }) if p == position),
            "{steps_ahead} ahead: {result:?}, need position {position}"
        );
        let lost = engine.tokens(sequence);
        assert!(matches!(lost, Err(EngineError::BadSequence(_))), "{lost:?}");
    }
}

/// R27: a state that is not finite is never saved.
#[test]
fn a_poisoned_state_is_not_saved() {
    let golden = Golden::open("generic");
    let spoiled = Spoiled::new(&golden).poison_token(300);
    let mut engine = load(spoiled.path(), cpu(Numerics::Exact), options()).unwrap();
    let sequence = engine.open().unwrap();
    engine.prefill(sequence, &[1, 2], PrefillEnd::More).unwrap();
    engine.snapshot(sequence).unwrap();
    engine.step(sequence, 300).unwrap();
    for result in [engine.snapshot(sequence).map(|_| ()), engine.fork(sequence).map(|_| ())] {
        let Err(EngineError::PoisonedState { sequence: 0, buffer }) = result else {
            panic!("need a refusal, found {result:?}");
        };
        assert!(buffer.starts_with("layers.0."), "{buffer}");
    }
    // Stepping back to before the damage makes it whole again.
    engine.step_back(sequence, 2).unwrap();
    engine.snapshot(sequence).unwrap();
}
