//! A whole model on a device against the same model by the plain references of its kernels.

use std::fmt;

use anyhow::{Context as _, Result};
use lily_chat::random_model;
use lily_kernels::conformance::Bar;
use lily_kernels::table;
use lily_model::Checkpoint;
use lily_model::engine::{Engine, EngineOptions};
use lily_model::evaluation::{Evaluation, Reference, evaluate};
use lily_model::plan::model_shape;
use lily_plan::{Device, Interpreter, Precision};
use serde::Serialize;

/// Tokens of the prompt: with the chunk below, chunks of two sizes.
const PROMPT: u32 = 48;
/// Largest prefill chunk.
const CHUNK: usize = 32;
/// Tokens that follow it.
const IDS: usize = 16;

/// How a model's logits compare.
#[derive(Serialize)]
pub struct WholeModel {
    ok: bool,
    /// Largest relative rms that is ok. Random weights amplify rounding more than trained ones do.
    bar: f64,
    #[serde(flatten)]
    found: Evaluation,
}

impl WholeModel {
    /// Runs a tiny model with random weights: they amplify what is wrong.
    ///
    /// # Errors
    /// It cannot be made, or a launch fails.
    pub fn examine(device: Box<dyn Device>, bar: Bar) -> Result<Self> {
        let made = random_model()?;
        let checkpoint = Checkpoint::open(made.path())?;
        let engine = |device| {
            let options = EngineOptions {
                context: PROMPT as usize + IDS + 1,
                chunk: CHUNK,
                all_logits: true,
                ..EngineOptions::default()
            };
            let shape = model_shape(checkpoint.config());
            Engine::new(device, shape, checkpoint.weights()?, options)
                .context("the tiny model does not run")
        };
        let oracle = Interpreter::new(table::reference, Precision::EXACT, false);
        let prompt = (0..PROMPT).map(|i| 1 + i * 37 % 200).collect();
        let reference = Reference::record(&mut engine(Box::new(oracle))?, vec![prompt], IDS)?;
        let found = evaluate(&mut engine(device)?, &reference)?;
        let bar = match bar {
            Bar::Exact => 1e-4,
            Bar::Int8 => 0.1,
            Bar::Bf16 => 0.03,
        };
        // A NaN is no small difference.
        let ok = found.rms <= bar && found.max_abs.is_finite() && found.clear_top1 >= 0.95;
        Ok(Self { ok, bar, found })
    }

    /// Whether the device computes the model.
    pub fn is_ok(&self) -> bool {
        self.ok
    }
}

impl fmt::Display for WholeModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Evaluation { positions, rms, clear_top1, clear_positions, .. } = &self.found;
        let verdict = if self.ok { "ok" } else { "FAILED" };
        writeln!(
            f,
            "{:21} {positions:5} {rms:12.1e}  {verdict}: need {:.0e}; {:.1} % of {clear_positions} clear choices",
            "whole model",
            self.bar,
            100.0 * clear_top1
        )
    }
}

#[cfg(test)]
mod tests {
    use lily_cpu::Numerics;
    use lily_plan::{ReferenceFn, ReferenceIo};

    use super::*;
    use crate::device;

    #[test]
    fn a_right_device_passes_and_one_with_a_wrong_kernel_fails() {
        let right = device::cpu(Numerics::Int8, 1).expect("its set");
        let model = WholeModel::examine(Box::new(right), Bar::Int8).expect("it runs");
        assert!(model.is_ok(), "{model}");
        // A product that forgets to add its input to the residual is another model's.
        let wrong = |name: &str| match name {
            "gdn_out" => Some(nothing as ReferenceFn),
            name => table::reference(name),
        };
        let wrong = Interpreter::new(wrong, Precision::EXACT, false);
        let model = WholeModel::examine(Box::new(wrong), Bar::Exact).expect("it runs");
        assert!(!model.is_ok(), "{model}");
    }

    fn nothing(_: &mut ReferenceIo<'_>) {}
}
