//! Tokens drawn on the device: the host's, whatever runs ahead, and as often as their probabilities say.

#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;

use lily_cpu::Numerics;
use lily_kernels::draw::Draw;
use lily_model::engine::{Engine, EngineOptions, Finish, Generation, SequenceId};
use lily_model::plan::{Choice, PrefillEnd};
use lily_model::sampling::Sampling;
use lily_plan::{Fusions, Precision, control, write_i32};
use lily_tests::rig::Rig;
use lily_tests::{GOLDEN, Golden, cpu, interpreter};

fn options() -> EngineOptions {
    EngineOptions { context: 160, chunk: 64, ..EngineOptions::default() }
}

/// The settings of the reference checkpoint.
fn usual(seed: u64) -> Sampling {
    Sampling { temperature: 1.0, top_k: 20, top_p: 0.95, seed, ..Sampling::greedy() }
}

fn settings() -> Vec<Sampling> {
    let s = usual;
    vec![
        s(1),
        s(2),
        s(u64::MAX - 5),
        Sampling { temperature: 3.0, top_k: 64, top_p: 1.0, ..s(3) },
        Sampling { temperature: 0.3, top_k: 5, ..s(4) },
        Sampling { temperature: 1.7, top_k: 63, top_p: 0.8, min_p: 0.02, ..s(5) },
        Sampling { temperature: 2.0, top_k: 2, top_p: 1.0, ..s(6) },
        Sampling { temperature: 5.0, top_k: 1, ..s(7) },
    ]
}

fn drawn(sampling: &Sampling, limit: usize) -> Generation {
    Generation { limit, sampling: sampling.clone(), ..Generation::default() }
}

/// The same on the host: log probabilities take the logits there.
fn on_host(generation: &Generation) -> Generation {
    Generation { logprobs: Some(0), ..generation.clone() }
}

fn generate(
    engine: &mut Engine,
    sequence: SequenceId,
    prompt: &[u32],
    generation: &Generation,
) -> (Vec<u32>, Finish) {
    let mut out = Vec::new();
    let finish = engine.generate(sequence, prompt, generation, &mut |progress| {
        out.extend(progress.token());
        ControlFlow::Continue(())
    });
    (out, finish.unwrap())
}

fn text(engine: &mut Engine, prompt: &[u32], generation: &Generation) -> (Vec<u32>, Finish) {
    let sequence = engine.open().unwrap();
    let text = generate(engine, sequence, prompt, generation);
    engine.close(sequence);
    text
}

/// The next logits of a sequence, and those of a cold run over its tokens, as bits.
fn assert_like_cold(engine: &mut Engine, sequence: SequenceId) {
    let bits = |engine: &mut Engine, sequence| -> Vec<u32> {
        engine.step(sequence, 17).unwrap();
        engine.logits(sequence).unwrap().into_iter().map(f32::to_bits).collect()
    };
    let ids = engine.tokens(sequence).unwrap().to_vec();
    let got = bits(engine, sequence);
    let cold = engine.open().unwrap();
    engine.prefill(cold, &ids[..1], PrefillEnd::More).unwrap();
    for &id in &ids[1..] {
        engine.step(cold, id).unwrap();
    }
    assert_eq!(got, bits(engine, cold));
    engine.close(cold);
}

#[test]
fn the_device_draws_what_the_host_draws() {
    for name in GOLDEN {
        let golden = Golden::open(name);
        let prompt = &golden.prompts.prompts[1];
        for (numerics, settings) in
            [(Numerics::Exact, &settings()[..]), (Numerics::Int8, &settings()[..2])]
        {
            let mut engine = golden.engine(cpu(numerics), options());
            for (i, sampling) in settings.iter().enumerate() {
                let generation = drawn(sampling, 12);
                let device = text(&mut engine, prompt, &generation);
                assert_eq!(device.0.len(), 12);
                let host = text(&mut engine, prompt, &on_host(&generation));
                assert_eq!(device, host, "{name}, {numerics:?}, setting {i}");
            }
        }
    }
}

#[test]
fn the_interpreter_draws_what_the_host_draws() {
    let golden = Golden::open("generic");
    for precision in [Precision::EXACT, Precision::BF16] {
        let mut engine = golden.engine(interpreter(precision, true), options());
        let generation = drawn(&Sampling { top_k: 40, ..usual(9) }, 6);
        let prompt = &golden.prompts.prompts[1];
        let device = text(&mut engine, prompt, &generation);
        assert_eq!(device, text(&mut engine, prompt, &on_host(&generation)));
    }
}

#[test]
fn seeds_give_texts_of_their_own_and_the_same_twice() {
    let golden = Golden::open("heads");
    let mut engine = golden.engine(cpu(Numerics::Exact), options());
    let prompt = &golden.prompts.prompts[1];
    let text_of = |engine: &mut Engine, seed| text(engine, prompt, &drawn(&usual(seed), 16)).0;
    let mut texts: Vec<_> = (0..12).map(|seed| text_of(&mut engine, seed)).collect();
    assert_eq!(text_of(&mut engine, 5), texts[5]);
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 12);
}

#[test]
fn running_ahead_gives_the_same_text_and_leaves_the_state_of_a_cold_run() {
    let golden = Golden::open("odd");
    let prompt = &golden.prompts.prompts[1];
    let mut plain = golden.engine(cpu(Numerics::Exact), options());
    for seed in 0..3 {
        let want = text(&mut plain, prompt, &drawn(&usual(seed), 20));
        for (run_ahead, steps_ahead) in [(1, 1), (2, 2), (5, 3)] {
            let base = EngineOptions { batch: 2, run_ahead, steps_ahead, ..options() };
            let mut engine = golden.engine(cpu(Numerics::Exact), base);
            let sequence = engine.open().unwrap();
            let got = generate(&mut engine, sequence, &prompt[..1], &drawn(&usual(seed), 20));
            assert_eq!(got, text(&mut plain, &prompt[..1], &drawn(&usual(seed), 20)));
            assert_like_cold(&mut engine, sequence);
            engine.close(sequence);
            assert_eq!(text(&mut engine, prompt, &drawn(&usual(seed), 20)), want);
        }
    }
}

#[test]
fn a_stop_token_and_a_limit_halt_the_device() {
    let golden = Golden::open("generic");
    let prompt = &golden.prompts.prompts[1][..1];
    for steps_ahead in [0, 2] {
        let base = EngineOptions { batch: 2, run_ahead: 2, steps_ahead, ..options() };
        let mut engine = golden.engine(cpu(Numerics::Exact), base);
        let sampling = Sampling { temperature: 2.0, ..usual(11) };
        let (want, finish) = text(&mut engine, prompt, &drawn(&sampling, 30));
        assert_eq!((want.len(), finish), (30, Finish::Length));
        let at = (5..30).find(|&i| !want[..i].contains(&want[i])).unwrap();
        let stop = Generation { stop_ids: vec![600, want[at]], ..drawn(&sampling, 30) };
        let sequence = engine.open().unwrap();
        let (got, finish) = generate(&mut engine, sequence, prompt, &stop);
        assert_eq!((&got[..], finish), (&want[..=at], Finish::Stop(want[at])));
        assert_eq!(engine.pending(sequence).unwrap(), Some(want[at]));
        assert_eq!(engine.tokens(sequence).unwrap()[1..], want[..at]);
        assert_like_cold(&mut engine, sequence);
        engine.close(sequence);
    }
}

/// The generator is keyed by seed and position: what is drawn again after a step back is what was drawn.
#[test]
fn a_text_continues_the_same_after_a_step_back() {
    let golden = Golden::open("generic");
    let prompt = &golden.prompts.prompts[1];
    let base = EngineOptions { run_ahead: 4, steps_ahead: 1, ..options() };
    let mut engine = golden.engine(cpu(Numerics::Exact), base);
    let (want, _) = text(&mut engine, prompt, &drawn(&usual(21), 16));
    let sequence = engine.open().unwrap();
    let (first, _) = generate(&mut engine, sequence, prompt, &drawn(&usual(21), 10));
    assert_eq!(first, want[..10]);
    // Nine of the ten are in the states; two of these are taken back, and the next fed again.
    let position = prompt.len() + 7;
    engine.step_back(sequence, position).unwrap();
    let (again, _) = generate(&mut engine, sequence, &want[7..8], &drawn(&usual(21), 8));
    assert_eq!(again, want[8..]);
}

/// Sequences in one step keep to their own rules, a greedy one among them.
#[test]
fn sequences_that_decode_together_draw_by_their_own_rules() {
    const LIMIT: usize = 8;
    let golden = Golden::open("generic");
    let prompts = &golden.prompts.prompts[..3];
    let sampled = |seed| Sampling { temperature: 1.5, top_k: 30, ..usual(seed) };
    let rules = [sampled(1), Sampling::greedy(), sampled(2)];
    let mut engine = golden.engine(cpu(Numerics::Exact), options());
    let want: Vec<Vec<u32>> = (prompts.iter().zip(&rules))
        .map(|(prompt, sampling)| text(&mut engine, prompt, &drawn(sampling, LIMIT)).0)
        .collect();
    let device = cpu(Numerics::Exact);
    let rig = Rig::new(&golden, device.precision(), 3, 160);
    let mut machine = rig.start(device);
    for (sequence, rule) in rules.iter().enumerate() {
        let words = rule.on_device().unwrap().words();
        let first = sequence * Draw::WORDS;
        write_i32(machine.device.as_mut(), rig.buffers.sampling, first, &words).unwrap();
        let plan = machine.compile(&rig.prefill(160, sequence, PrefillEnd::Draw));
        machine.start_chunk(sequence, &prompts[sequence]);
        machine.run(plan);
    }
    let plan = machine.compile(&rig.decode(100, Choice::Draw, Fusions::default()));
    (1..LIMIT).for_each(|_| machine.run(plan));
    for (sequence, want) in want.iter().enumerate() {
        assert_eq!(machine.output(sequence, LIMIT), *want, "sequence {sequence}");
    }
}

/// Chi-square of the first token behind a prompt, over many seeds, against probabilities computed from
/// the logits in f64. The seeds are fixed, so the result is, too.
#[test]
fn drawn_tokens_are_as_frequent_as_their_probabilities() {
    const SEEDS: u64 = 6000;
    let golden = Golden::open("generic");
    let rig = Rig::new(&golden, Precision::EXACT, 1, 16);
    let mut machine = rig.start(cpu(Numerics::Exact));
    machine.start_chunk(0, &golden.prompts.prompts[1][..3]);
    let started = machine.all_bytes();
    let prefill = machine.compile(&rig.prefill(16, 0, PrefillEnd::Draw));
    for (temperature, top_k, top_p, min_p) in
        [(1.0, 20, 0.95, 0.0), (2.5, 64, 1.0, 0.0), (1.5, 40, 1.0, 0.1)]
    {
        machine.set_all_bytes(&started);
        machine.run(prefill);
        let vocab = rig.shape.vocab;
        let logits = rig.buffers.scratch.logits;
        let logits = lily_plan::read_f32(machine.device.as_mut(), logits, 0, vocab).unwrap();
        let odds = probabilities(&logits[..rig.shape.vocab_used], temperature, top_k, top_p, min_p);
        let draw = rig.decode(3, Choice::Draw, Fusions::default());
        let last = draw.launches().len() - 1;
        let draw = machine.compile(&draw);
        let mut seen = vec![0u64; vocab];
        let position = machine.row(0)[control::POSITION] - 1;
        for seed in 0..SEEDS {
            let rule = Draw::new(temperature, top_k, top_p, min_p, seed);
            let id = rig.buffers.sampling;
            write_i32(machine.device.as_mut(), id, 0, &rule.words()).unwrap();
            machine.set_row(0, |row| row[control::POSITION] = position);
            machine.device.run_launch(draw, last).unwrap();
            seen[machine.row(0)[control::TOKEN] as usize] += 1;
        }
        let (mut distance, mut cells, mut rest) = (0.0, 0, (0.0, 0));
        let mut add = |expected: f64, seen: u64| {
            distance += (seen as f64 - expected).powi(2) / expected;
            cells += 1;
        };
        for (id, p) in &odds {
            let expected = p * SEEDS as f64;
            // Rare ones together, as a chi-square needs.
            if expected < 10.0 {
                rest = (rest.0 + expected, rest.1 + seen[*id]);
            } else {
                add(expected, seen[*id]);
            }
            seen[*id] = 0;
        }
        if rest.0 > 0.0 {
            add(rest.0, rest.1);
        }
        assert_eq!(seen.iter().sum::<u64>(), 0, "only what the filters leave is drawn");
        assert!(cells > 5, "{cells} cells");
        // Mean of the distribution and 4 standard deviations.
        let freedom = f64::from(cells - 1);
        let limit = freedom + 4.0 * (2.0 * freedom).sqrt();
        assert!(distance < limit, "top-k {top_k}: distance {distance}, at most {limit}");
    }
}

/// Ids that may be drawn, with their probabilities: the definition in f64.
fn probabilities(
    logits: &[f32],
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
) -> Vec<(usize, f64)> {
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    ids.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    ids.truncate(top_k);
    let weight = |id: usize| (f64::from(logits[id]) / f64::from(temperature)).exp();
    let total: f64 = ids.iter().map(|&id| weight(id)).sum();
    let mut kept: Vec<(usize, f64)> = Vec::new();
    let mut sum = 0.0;
    for id in ids {
        let p = weight(id) / total;
        if sum >= f64::from(top_p) || kept.first().is_some_and(|k| p < k.1 * f64::from(min_p)) {
            break;
        }
        sum += p;
        kept.push((id, p));
    }
    kept.iter().map(|&(id, p)| (id, p / sum)).collect()
}
