//! Golden models on the CPU: logits, greedy ids, hidden states and traces of an f32 reference.

#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;

use lily_cpu::Numerics;
use lily_model::engine::{Engine, EngineOptions, Generation, Progress, SequenceId};
use lily_model::evaluation::{Reference, evaluate};
use lily_model::plan::PrefillEnd;
use lily_plan::{Device, Launch, read_f32, read_i32};
use lily_tests::{GOLDEN, Golden, argmax, cpu, max_difference, relative_rms};

/// Largest allowed difference of a logit in f32.
const EXACT_LOGIT: f32 = 1e-3;

fn options(chunk: usize) -> EngineOptions {
    EngineOptions { context: 256, chunk, batch: 2, all_logits: true, ..EngineOptions::default() }
}

/// Logits of every prompt position.
fn all_logits(engine: &mut Engine, sequence: SequenceId, ids: &[u32]) -> Vec<f32> {
    let mut all = Vec::new();
    engine.evaluate(sequence, ids, &mut |_, logits| all.extend_from_slice(logits)).unwrap();
    all
}

fn greedy(engine: &mut Engine, sequence: SequenceId, ids: &[u32], limit: usize) -> Vec<u32> {
    let generation = Generation { limit, ..Generation::default() };
    let mut out = Vec::new();
    let mut collect = |progress: Progress| {
        out.extend(progress.token());
        ControlFlow::Continue(())
    };
    engine.generate(sequence, ids, &generation, &mut collect).unwrap();
    out
}

fn assert_logits(name: &str, got: &[f32], want: &[f32], vocab: usize) {
    let difference = max_difference(got, want);
    assert!(difference <= EXACT_LOGIT, "{name}: a logit differs by {difference:e}");
    for (row, (got, want)) in got.chunks(vocab).zip(want.chunks(vocab)).enumerate() {
        assert_eq!(argmax(got), argmax(want), "{name}: the top token of row {row}");
    }
}

#[test]
fn exact_logits_and_greedy_ids_equal_the_reference_for_every_chunk_size() {
    for name in GOLDEN {
        let golden = Golden::open(name);
        for chunk in [1, 7, 63, 64, 65] {
            let mut engine = golden.engine(cpu(Numerics::Exact), options(chunk));
            let vocab = engine.shape().vocab;
            for (i, ids) in golden.prompts.prompts.iter().enumerate() {
                let label = format!("{name}, prompt of {}, chunks of {chunk}", ids.len());
                let want = &golden.prompts.greedy[i];
                let sequence = engine.open().unwrap();
                let logits = all_logits(&mut engine, sequence, ids);
                assert_logits(&label, &logits, &golden.logits[i], vocab);
                // The state behind the chunks is right if what follows it is.
                let more = greedy(&mut engine, sequence, &want[..1], want.len() - 1);
                assert_eq!(more, want[1..], "{label}");
                engine.close(sequence);
                if chunk == 64 {
                    let sequence = engine.open().unwrap();
                    assert_eq!(&greedy(&mut engine, sequence, ids, want.len()), want, "{label}");
                    engine.close(sequence);
                }
            }
        }
    }
}

#[test]
fn exact_decode_steps_over_the_prompts_equal_the_reference() {
    for name in GOLDEN {
        let golden = Golden::open(name);
        let mut engine = golden.engine(cpu(Numerics::Exact), options(64));
        let vocab = engine.shape().vocab;
        for (ids, want) in golden.prompts.prompts.iter().zip(&golden.logits) {
            let sequence = engine.open().unwrap();
            let mut got = Vec::new();
            for &id in ids {
                engine.step(sequence, id).unwrap();
                got.extend(engine.logits(sequence).unwrap());
            }
            engine.close(sequence);
            assert_logits(&format!("{name}, prompt of {}", ids.len()), &got, want, vocab);
        }
    }
}

/// R28: the last, incomplete chunk of the DeltaNet must not leave its padding in the state. The small
/// model takes every length; the one with odd dimensions those around the borders of chunks and plans.
#[test]
fn r28_prefill_of_n_tokens_equals_one_less_and_a_step() {
    let borders = [1..=9, 30..=34, 62..=67, 94..=97, 126..=130];
    for (name, lengths) in [
        ("mixed", (1..=130).collect::<Vec<usize>>()),
        ("odd", borders.into_iter().flatten().collect()),
    ] {
        let golden = Golden::open(name);
        let mut engine = golden.engine(cpu(Numerics::Exact), options(256));
        let ids = golden.prompts.prompts.last().unwrap();
        let mut stepped = None;
        for n in lengths {
            let sequence = engine.open().unwrap();
            engine.prefill(sequence, &ids[..n], PrefillEnd::Logits).unwrap();
            let whole = engine.logits(sequence).unwrap();
            let got = match stepped.take_if(|(length, _)| *length == n) {
                Some((_, logits)) => logits,
                None => step_after(&mut engine, ids, n),
            };
            let difference = max_difference(&got, &whole);
            assert!(difference <= EXACT_LOGIT, "{name}, {n} tokens: differs by {difference:e}");
            // One step more belongs to the next length.
            if let Some(&next) = ids.get(n) {
                engine.step(sequence, next).unwrap();
                stepped = Some((n + 1, engine.logits(sequence).unwrap()));
            }
            engine.close(sequence);
        }
    }
}

/// Logits after a prefill of all but the last of `n` tokens and a step.
fn step_after(engine: &mut Engine, ids: &[u32], n: usize) -> Vec<f32> {
    let sequence = engine.open().unwrap();
    if n > 1 {
        engine.prefill(sequence, &ids[..n - 1], PrefillEnd::More).unwrap();
    }
    engine.step(sequence, ids[n - 1]).unwrap();
    let logits = engine.logits(sequence).unwrap();
    engine.close(sequence);
    logits
}

#[test]
fn hidden_states_after_every_layer_equal_the_reference() {
    for name in ["heads", "odd"] {
        let golden = Golden::open(name);
        let want = golden.tensors("hidden_hf32.safetensors");
        let ids = &golden.prompts.prompts[golden.prompts.hidden_prompt];
        let mut engine = golden.engine(cpu(Numerics::Exact), options(64));
        let count = ids.len() * engine.shape().hidden;
        let mut checked = 0;
        let mut check = |launch: &Launch, device: &mut dyn Device| {
            let hidden = match (launch.kernel, launch.layer) {
                ("embed", _) => "hidden.0".to_string(),
                ("combine", Some(layer)) => format!("hidden.{}", layer + 1),
                _ => return,
            };
            let x = device.buffers().find("x").expect("the residual stream");
            let got = read_f32(device, x, 0, count).unwrap();
            let difference = max_difference(&got, &want[&hidden]);
            assert!(difference <= 2e-4, "{name}, {hidden}: differs by {difference:e}");
            checked += 1;
        };
        let sequence = engine.open().unwrap();
        engine.trace_chunk(sequence, ids, &mut check).unwrap();
        assert_eq!(checked, engine.shape().layers.len() + 1);
    }
}

/// What the reference recorded in a layer, and the launch and buffer that hold the same.
const TRACE: [(&str, &str, &str); 13] = [
    ("qkv", "gdn_in", "qkv"),
    ("z", "gdn_in", "z"),
    ("q", "gdn_conv", "gq"),
    ("k", "gdn_conv", "gk"),
    ("beta", "gdn_conv", "beta"),
    ("log_decay", "gdn_conv", "log_decay"),
    ("core", "gdn_scan", "core"),
    ("gated", "gdn_gate", "og"),
    ("q", "attn_prepare", "q"),
    ("gated", "attn_flash", "att"),
    ("v", "attn_in", "av"),
    ("expert_ids", "topk", "ids"),
    ("expert_weights", "topk", "route"),
];

#[test]
fn traces_of_a_deltanet_and_an_attention_layer_equal_the_reference() {
    for name in ["heads", "odd"] {
        let golden = Golden::open(name);
        let want = golden.tensors("trace_spec64.safetensors");
        let ids = &golden.prompts.prompts[golden.prompts.hidden_prompt];
        let mut engine = golden.engine(cpu(Numerics::Exact), options(64));
        let tokens = ids.len();
        let mut checked = Vec::new();
        let mut check = |launch: &Launch, device: &mut dyn Device| {
            for (step, kernel, buffer) in TRACE {
                let tensor = format!("layers.{}.{step}", launch.layer.unwrap_or(usize::MAX));
                let Some(want) = want.get(&tensor).filter(|_| launch.kernel == kernel) else {
                    continue;
                };
                let id = device.buffers().find(buffer).expect("a scratch buffer");
                let width = device.buffers().get(id).elements() / device.buffers().get(id).shape[0];
                let mut want = want.clone();
                let got = if buffer == "ids" {
                    // The file holds i32 values, which were read as the bits of floats.
                    want.iter_mut().for_each(|v| *v = v.to_bits() as f32);
                    let ids = read_i32(device, id, 0, tokens * width).unwrap();
                    ids.into_iter().map(|i| i as f32).collect()
                } else {
                    read_f32(device, id, 0, tokens * width).unwrap()
                };
                // The shared expert's slot is not part of the recorded choice.
                let recorded = want.len() / tokens;
                let got: Vec<f32> =
                    got.chunks(width).flat_map(|row| row[..recorded].to_vec()).collect();
                let difference = max_difference(&got, &want);
                assert!(difference <= 2e-4, "{name}, {tensor}: differs by {difference:e}");
                checked.push(tensor);
            }
        };
        let sequence = engine.open().unwrap();
        engine.trace_chunk(sequence, ids, &mut check).unwrap();
        checked.sort();
        checked.dedup();
        assert!(checked.len() >= 15, "{name}: only {checked:?}");
    }
}

/// The bar of 8-bit inputs on random weights: see the numbers section of docs/design.md.
#[test]
fn int8_inputs_keep_the_clear_choices_of_the_reference() {
    let (mut clear, mut same) = (0.0, 0.0);
    for name in GOLDEN {
        let golden = Golden::open(name);
        let reference = Reference::open(&golden.folder).unwrap();
        let mut engine = golden.engine(cpu(Numerics::Int8), options(64));
        let e = evaluate(&mut engine, &reference).unwrap();
        println!("{name}: {e:?}");
        assert!(e.rms < 0.08, "{name}: relative rms {}", e.rms);
        clear += e.clear_positions as f64;
        same += e.clear_top1 * e.clear_positions as f64;
    }
    assert!(same / clear >= 0.98, "{same} of {clear} clear choices");
}

#[test]
fn two_runs_give_the_same_bits() {
    let golden = Golden::open("generic");
    let ids = golden.prompts.prompts.last().unwrap();
    for numerics in [Numerics::Exact, Numerics::Int8] {
        let run = || {
            let mut engine = golden.engine(cpu(numerics), options(64));
            let sequence = engine.open().unwrap();
            all_logits(&mut engine, sequence, ids)
        };
        let (a, b) = (run(), run());
        assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()));
        assert!(relative_rms(&a, &b) == 0.0);
    }
}
