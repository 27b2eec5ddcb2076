//! A prompt of 100,000 tokens through the full-size model on an NVIDIA GPU: random weights of the exact shapes, in device
//! memory. Reported as skipped where there is no GPU, or too little memory on it.

use std::path::Path;

use lily_cuda::compiler::Compiler;
use lily_cuda::{CudaDevice, CudaError, CudaOptions};
use lily_model::Config;
use lily_model::engine::{Engine, EngineError, EngineOptions};
use lily_model::plan::{PrefillEnd, model_shape};
use lily_model::synth::{self, preset, random_weights};
use lily_tests::{argmax, relative_rms};

/// Tokens of the prompt.
const PROMPT: usize = 100_000;
/// Tokens behind it.
const CONTINUED: usize = 48;
/// Two ids tie if their logits, whose deviation is 1, lie at most this far apart, as for recorded logits: another chunk
/// size sums in another order, and may choose either.
const TIE: f32 = 0.5;
/// Largest relative rms of the logits of one position between two chunk sizes. Each is that far from exact arithmetic:
/// random weights amplify rounding from layer to layer.
const DIFFERENCE: f64 = 0.25;

/// An engine with chunks of this size, or why there is none.
fn engine(chunk: usize) -> Option<Engine> {
    let device = match CudaDevice::new(CudaOptions {
        nvrtc: std::env::var_os("LILY_NVRTC").map(Into::into),
        cache: Compiler::default_cache(),
        ..CudaOptions::default()
    }) {
        Ok(device) => device,
        Err(error @ (CudaError::NoDriver | CudaError::NoGpu { .. })) => {
            println!("skipped: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let value = preset("qwen3.6-35b-a3b").expect("a preset");
    let config = synth::plan(&value, 0).expect("a whole configuration").config().to_string();
    let config = Config::from_json(&config, Path::new("preset")).expect("a supported model");
    let shape = model_shape(&config);
    let weights = random_weights(&shape, 0);
    let options =
        EngineOptions { context: PROMPT + CONTINUED + 1, chunk, ..EngineOptions::default() };
    match Engine::new(Box::new(device), shape, weights, options) {
        Ok(engine) => Some(engine),
        Err(error @ (EngineError::Memory { .. } | EngineError::WeightMemory { .. })) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Logits behind the prompt, and behind each token of a continuation: the greedy one if none is given.
fn logits(engine: &mut Engine, given: Option<&[u32]>) -> (Vec<Vec<f32>>, Vec<u32>) {
    let used = engine.shape().vocab_used;
    let prompt: Vec<u32> =
        (0..PROMPT as u64).map(|i| (i.wrapping_mul(2_654_435_761) % used as u64) as u32).collect();
    let sequence = engine.open().expect("a free sequence");
    engine.prefill(sequence, &prompt, PrefillEnd::Logits).expect("the prompt is read");
    let (mut rows, mut tokens) = (Vec::new(), Vec::new());
    for step in 0..=CONTINUED {
        let mut row = engine.logits(sequence).expect("there are logits");
        row.truncate(used);
        let next = given.map_or_else(|| argmax(&row) as u32, |given| given[step]);
        rows.push(row);
        tokens.push(next);
        if step < CONTINUED {
            engine.step(sequence, next).expect("a step");
        }
    }
    engine.close(sequence);
    (rows, tokens)
}

/// R29. The continuation of the first size is fed to the others, so that all of its choices can be compared.
#[test]
fn r29_chunk_sizes_give_the_same_continuation_but_for_ties_and_two_runs_the_same_bits() {
    let Some(mut first) = engine(512) else { return };
    let (want, tokens) = logits(&mut first, None);
    drop(first);
    for chunk in [1792, 2048] {
        let Some(mut other) = engine(chunk) else { return };
        let (got, _) = logits(&mut other, Some(&tokens));
        let errors: Vec<f64> = got.iter().zip(&want).map(|(g, w)| relative_rms(g, w)).collect();
        let gaps = got.iter().zip(&want).map(|(g, w)| w[argmax(w)] - w[argmax(g)]);
        let gaps: Vec<f32> = gaps.filter(|&gap| gap > 0.0).collect();
        println!(
            "chunks of {chunk}: relative rms {:.2e} behind the prompt, {:.2e} behind the last token; other choices {gaps:.3?} \
             below the first, of {}",
            errors[0],
            errors[CONTINUED],
            got.len()
        );
        assert!(errors.iter().all(|&error| error <= DIFFERENCE), "chunks of {chunk}: {errors:.3?}");
        assert!(gaps.iter().all(|&gap| gap <= TIE), "chunks of {chunk}: {gaps:.3?}");
        if chunk == 2048 {
            let (again, _) = logits(&mut other, Some(&tokens));
            let bits = |rows: &[Vec<f32>]| -> Vec<u32> {
                rows.iter().flatten().map(|logit| logit.to_bits()).collect()
            };
            assert!(bits(&again) == bits(&got), "two runs give different bits");
        }
    }
}
