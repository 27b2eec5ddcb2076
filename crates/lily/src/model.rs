//! Opens a model on a device.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lily_cpu::{CpuDevice, CpuOptions, Numerics};
use lily_model::engine::{Engine, EngineOptions};
use lily_model::plan::model_shape;
use lily_model::{Checkpoint, stop_tokens};

use crate::args::ModelArgs;
use crate::output::note;

/// An engine ready to run.
pub struct Loaded {
    /// The engine.
    pub engine: Engine,
    /// Tokens that end a text.
    pub stop_ids: Vec<u32>,
    /// Time from opening the folder to the end of the first forward pass.
    pub load_time: Duration,
}

/// Opens the folder, checks the weights and sets up an engine. Warnings go to standard error.
pub fn load(args: &ModelArgs, context: usize, all_logits: bool) -> Result<Loaded> {
    let start = Instant::now();
    let checkpoint = Checkpoint::open(&args.model)?;
    for warning in checkpoint.warnings() {
        note(format_args!("lily: warning: {warning}"));
    }
    let config = checkpoint.config();
    if context > config.max_position_embeddings {
        note(format_args!(
            "lily: warning: a context of {context} tokens is longer than the {} the model was made for",
            config.max_position_embeddings
        ));
    }
    let stop_ids = stop_tokens(&args.model, config)?;
    let numerics = if args.exact { Numerics::Exact } else { Numerics::Int8 };
    let device =
        CpuDevice::new(CpuOptions { numerics, threads: args.threads, ..CpuOptions::default() });
    let options = EngineOptions {
        context,
        chunk: args.chunk,
        all_logits,
        memory_limit: lily_cpu::memory_limit(),
        ..EngineOptions::default()
    };
    let weights = checkpoint.weights()?;
    let engine = Engine::new(Box::new(device), model_shape(config), weights, options)
        .with_context(|| format!("cannot run {}", args.model.display()))?;
    Ok(Loaded { engine, stop_ids, load_time: start.elapsed() })
}
