//! Long sequences: the recurrent state stays finite and bounded, and no path to a position drifts
//! from another. The longest are `ignored`; `scripts/check-full long` runs them.

#![allow(clippy::unwrap_used)]

use lily_cpu::Numerics;
use lily_model::engine::{Engine, EngineOptions, SequenceId};
use lily_model::parse_header;
use lily_model::plan::PrefillEnd;
use lily_model::synth::{SynthOptions, preset, write};
use lily_plan::{BufferKind, Device, Launch, read_f32};
use lily_tests::{cpu, load, max_difference};
use serde_json::json;
use tempfile::TempDir;

/// Tokens between two looks at the state.
const INTERVAL: usize = 10_000;
/// Largest absolute value of a recurrent state that is accepted. Keys have length 1 and every update
/// is a step of size beta < 1 towards the new value, so a state does not grow with time even where
/// nothing is forgotten; it exceeds the values because keys are not orthogonal. Seen here: up to 13.
const BOUND: f32 = 32.0;

/// A small random model with these layers. In half of the heads nothing is ever forgotten: their
/// decay differs from 1 by less than an f32 shows.
fn model(kinds: &[&str]) -> TempDir {
    let mut config = preset("tiny").unwrap();
    let text = &mut config["text_config"];
    text["layer_types"] = json!(kinds);
    text["num_hidden_layers"] = json!(kinds.len());
    for (field, size) in [("hidden_size", 64), ("num_experts", 4), ("vocab_size", 256)] {
        text[field] = json!(size);
    }
    text["eos_token_id"] = json!(255);
    let folder = tempfile::tempdir().unwrap();
    write(&SynthOptions::new(config, folder.path()), &mut |_| {}).unwrap();
    let path = folder.path().join("model.safetensors");
    let mut file = std::fs::read(&path).unwrap();
    for (name, entry) in parse_header(&file).unwrap() {
        if name.ends_with("A_log") {
            for head in file[entry.bytes].chunks_mut(8) {
                head[..4].copy_from_slice(&(-25.0f32).to_le_bytes());
            }
        }
    }
    std::fs::write(&path, file).unwrap();
    folder
}

fn engine(folder: &TempDir, context: usize, chunk: usize) -> Engine {
    engine_with(Numerics::Exact, folder, context, chunk)
}

fn engine_with(numerics: Numerics, folder: &TempDir, context: usize, chunk: usize) -> Engine {
    let options = EngineOptions { context, chunk, ..EngineOptions::default() };
    load(folder.path(), cpu(numerics), options).unwrap()
}

/// Repeatable tokens without a short period.
fn tokens(from: usize, count: usize) -> Vec<u32> {
    let token = |i: usize| {
        let mixed = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ (mixed >> 31)) % 250) as u32
    };
    (from..from + count).map(token).collect()
}

/// Feeds one token and returns the largest absolute value of all states, NaN as infinity.
fn largest_state(engine: &mut Engine, sequence: SequenceId, id: u32) -> f32 {
    let mut largest = 0f32;
    let mut states = 0;
    let mut look = |launch: &Launch, device: &mut dyn Device| {
        if launch.kernel != "advance" {
            return;
        }
        let buffers = device.buffers().clone();
        for (id, buffer) in buffers.iter() {
            if buffer.kind == BufferKind::State && buffer.name.ends_with("state") {
                states += 1;
                let values = read_f32(device, id, 0, buffer.elements()).unwrap();
                let magnitude = |v: &f32| if v.is_nan() { f32::INFINITY } else { v.abs() };
                largest = values.iter().map(magnitude).fold(largest, f32::max);
            }
        }
    };
    engine.trace_chunk(sequence, &[id], &mut look).unwrap();
    assert!(states > 0, "no state was looked at");
    largest
}

/// Feeds `count` tokens in chunks of `chunk` (1: decode steps) and looks at the state on the way.
fn stays_bounded(kinds: &[&str], count: usize, chunk: usize) {
    let folder = model(kinds);
    let mut engine = engine(&folder, count, chunk);
    let sequence = engine.open().unwrap();
    for from in (0..count).step_by(INTERVAL) {
        let ids = tokens(from, INTERVAL);
        let (last, ids) = ids.split_last().unwrap();
        match chunk {
            1 => ids.iter().for_each(|&id| engine.step(sequence, id).unwrap()),
            _ => engine.prefill(sequence, ids, PrefillEnd::More).unwrap(),
        }
        let largest = largest_state(&mut engine, sequence, *last);
        println!("{} tokens: largest state {largest}", from + INTERVAL);
        assert!(largest <= BOUND, "after {} tokens: {largest}", from + INTERVAL);
        assert!(largest > 0.1, "after {} tokens the state is empty", from + INTERVAL);
        engine.snapshot(sequence).unwrap();
    }
    assert_eq!(engine.tokens(sequence).unwrap().len(), count);
}

#[test]
fn the_state_of_20_000_tokens_is_bounded() {
    stays_bounded(&["linear_attention"], 20_000, 512);
}

/// R27, in chunks.
#[test]
#[ignore = "takes a minute in release: scripts/check-full long"]
fn r27_the_state_of_200_000_tokens_in_chunks_is_bounded() {
    stays_bounded(&["linear_attention", "linear_attention"], 200_000, 512);
}

/// R27, token by token.
#[test]
#[ignore = "takes a minute in release: scripts/check-full long"]
fn r27_the_state_of_200_000_decode_steps_is_bounded() {
    stays_bounded(&["linear_attention"], 200_000, 1);
}

#[test]
#[ignore = "takes a minute in release: scripts/check-full long"]
fn the_state_before_an_attention_layer_is_bounded() {
    stays_bounded(&["linear_attention", "full_attention"], 40_000, 512);
}

/// R29: one prompt in chunks of many sizes and token by token.
fn paths_agree(count: usize, chunks: &[usize]) {
    let folder = model(&["linear_attention", "full_attention", "linear_attention"]);
    let ids = tokens(0, count);
    let mut first: Option<Vec<f32>> = None;
    for &chunk in chunks {
        let mut engine = engine(&folder, count, chunk);
        let sequence = engine.open().unwrap();
        match chunk {
            1 => ids.iter().for_each(|&id| engine.step(sequence, id).unwrap()),
            _ => engine.prefill(sequence, &ids, PrefillEnd::Logits).unwrap(),
        }
        let logits = engine.logits(sequence).unwrap();
        let want = first.get_or_insert_with(|| logits.clone());
        let difference = max_difference(&logits, want);
        println!("chunks of {chunk}: {difference:e}");
        assert!(difference <= 1e-3, "chunks of {chunk}: a logit differs by {difference:e}");
    }
}

#[test]
fn a_prompt_gives_the_same_logits_in_all_chunk_sizes() {
    paths_agree(1500, &[1500, 448, 64, 50, 1]);
}

/// Rounding to 8 bits would make a visible difference of one in the last bit of anything before.
#[test]
fn a_prompt_gives_the_same_bits_in_all_chunk_sizes() {
    let folder = model(&["linear_attention", "full_attention", "linear_attention"]);
    let ids = tokens(0, 400);
    for numerics in [Numerics::Int8, Numerics::Exact] {
        let mut first: Option<Vec<u32>> = None;
        for chunk in [400, 256, 64, 50, 9] {
            let mut engine = engine_with(numerics, &folder, ids.len(), chunk);
            let sequence = engine.open().unwrap();
            engine.prefill(sequence, &ids, PrefillEnd::Logits).unwrap();
            let logits = engine.logits(sequence).unwrap();
            let bits: Vec<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
            let want = first.get_or_insert_with(|| bits.clone());
            let differ = bits.iter().zip(want).filter(|(a, b)| a != b).count();
            assert_eq!(differ, 0, "{numerics:?}, chunks of {chunk}: logits of other bits");
        }
    }
}

#[test]
#[ignore = "takes minutes in release: scripts/check-full long"]
fn r29_a_long_prompt_gives_the_same_logits_in_all_chunk_sizes() {
    paths_agree(23_768, &[16_384, 1_792, 512, 64, 1]);
}
