//! What a device must do with lily-nano, a trained model: rounding costs it far less than the random golden models.

use std::path::Path;

use lily_model::engine::{Engine, EngineOptions};
use lily_model::evaluation::{Evaluation, Reference, evaluate};
use lily_model::{Checkpoint, plan::model_shape};
use lily_nano::NANO;
use lily_plan::Device;

/// How far a device may be from the reference, over held-out conversations.
pub struct Bar {
    /// Largest relative difference of the perplexity.
    pub perplexity: f64,
    /// Smallest share of positions with the reference's token.
    pub top1: f64,
}

/// Matrix inputs and KV cache in bfloat16.
pub const BF16: Bar = Bar { perplexity: 0.0005, top1: 0.99 };

/// Matrix inputs in 8 bits. The positions that lose their token are those where the two best logits lie within 0.5, a
/// sixth of all: words that a user is free to choose.
pub const INT8: Bar = Bar { perplexity: 0.003, top1: 0.98 };

/// What a device computes, over about that many positions of the recorded conversations.
///
/// # Panics
/// The model does not run.
pub fn evaluated(mut device: Box<dyn Device>, positions: usize) -> Evaluation {
    let golden = std::env::var_os("LILY_GOLDEN_MODELS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("golden"), Into::into);
    let reference = Reference::open(&golden.join("nano")).expect("the reference of lily-nano");
    let reference = reference.within(positions);
    let checkpoint = Checkpoint::open(&NANO).expect("lily-nano is complete");
    let weights = checkpoint.weights().expect("its matrices are whole");
    device.weight_files(checkpoint.mapped_files());
    let options = EngineOptions {
        context: reference.longest().max(2),
        chunk: 64,
        all_logits: true,
        ..EngineOptions::default()
    };
    let shape = model_shape(checkpoint.config());
    let mut engine = Engine::new(device, shape, weights, options).expect("lily-nano runs");
    evaluate(&mut engine, &reference).expect("lily-nano is evaluated")
}

/// Fails if a device is further from the reference than the bar.
///
/// # Panics
/// As said.
pub fn stays_within(bar: &Bar, device: Box<dyn Device>, positions: usize) {
    let found = evaluated(device, positions);
    println!("{found:?}");
    assert!(found.positions > 20 && found.max_abs.is_finite(), "{found:?}");
    let worse = found.perplexity / found.reference_perplexity - 1.0;
    assert!(worse.abs() <= bar.perplexity, "perplexity {worse:+.5}: {found:?}");
    assert!(found.top1 >= bar.top1 && found.clear_top1 >= 0.99, "{found:?}");
}
