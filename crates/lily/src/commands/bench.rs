//! `lily bench`: prefill and decode speed over growing prompts.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use lily_kernels::ModelShape;
use lily_model::engine::{Engine, EngineOptions, Generation, KernelCost, Measured, Progress};
use lily_model::plan::model_shape;
use lily_model::sampling::Sampling;
use lily_model::{Config, synth};
use serde::Serialize;

use crate::args::BenchArgs;
use crate::device;
use crate::model::Source;
use crate::output::{note, print};

/// Runs of a profile.
const PROFILE_RUNS: usize = 10;

/// The figures of a run.
#[derive(Serialize)]
struct Report {
    device: String,
    model: String,
    rows: Vec<Row>,
}

/// Medians over the repetitions of one length, with the fastest and the slowest.
#[derive(Serialize)]
struct Row {
    length: usize,
    prefill_tok_s: f64,
    prefill_spread: [f64; 2],
    time_to_first_token_ms: f64,
    decode_tok_s: f64,
    decode_spread: [f64; 2],
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    let longest = args.lengths.iter().max().context("--lengths is empty")?;
    // A profile runs a chunk, and steps, behind the longest prompt.
    let behind = if args.profile { args.model.chunk + PROFILE_RUNS } else { 0 };
    let context = longest + args.decode + 1 + behind;
    // Now: a long measurement must not end with a file that cannot be written.
    let json = args.json.as_deref().map(create).transpose()?;
    // Before the device starts threads, which would not hold back signals.
    let source = match &args.preset {
        Some(preset) => Err(preset),
        None => Ok(Source::find(&args.model)?),
    };
    let opened = device::open(&args.model)?;
    let device = opened.description.clone();
    let options = EngineOptions {
        context,
        chunk: args.model.chunk,
        run_ahead: opened.steps_ahead.max(1),
        steps_ahead: opened.steps_ahead,
        memory_limit: opened.memory_limit,
        ..EngineOptions::default()
    };
    let (mut engine, model) = match source {
        Err(preset) => {
            let shape = preset_shape(preset)?;
            let weights = synth::random_weights(&shape, 0);
            let engine = Engine::new(opened.device, shape, weights, options)?;
            (engine, format!("{preset}, random weights"))
        }
        Ok(held) => {
            let name = held.source.name.clone();
            (held.load_on(opened, options)?.engine, name)
        }
    };
    note(format_args!("lily: {model} on {device}"));
    let mut report = Report { device, model, rows: Vec::new() };
    print(format_args!(
        "{:>8} {:>14} {:>18} {:>14}\n",
        "length", "prefill tok/s", "first token, ms", "decode tok/s"
    ))?;
    for &length in &args.lengths {
        let row = measure(&mut engine, length, args)?;
        print(format_args!(
            "{:>8} {:>14.1} {:>18.2} {:>14.1}\n",
            row.length, row.prefill_tok_s, row.time_to_first_token_ms, row.decode_tok_s
        ))?;
        report.rows.push(row);
    }
    if args.profile {
        let chunk = args.model.chunk.min(*longest);
        for (name, step) in
            [("decode step", Measured::Decode), ("prefill chunk", Measured::Prefill(chunk))]
        {
            let sequence = engine.open()?;
            let costs = engine.profile(sequence, step, *longest, PROFILE_RUNS);
            engine.close(sequence);
            print(profile(&format!("{name} after {longest} tokens"), &costs?))?;
        }
    }
    if let Some((mut file, path)) = json {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        let written = file.write_all(text.as_bytes());
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The file of the figures, empty.
fn create(path: &Path) -> Result<(File, &Path)> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok((file, path))
}

/// The costs of a step as a table. Kernels run apart from each other here, so the sum is not the time of
/// the step.
fn profile(title: &str, costs: &[KernelCost]) -> String {
    if costs.is_empty() {
        return format!("{title}: this device does not measure its kernels\n");
    }
    let mut out = format!(
        "\n{title}\n{:22} {:>8} {:>12} {:>12} {:>10} {:>10}\n",
        "kernel", "launches", "µs a launch", "µs in all", "GB/s", "TFLOP/s"
    );
    let mut all = 0.0;
    for cost in costs {
        all += cost.seconds;
        let _ = writeln!(
            out,
            "{:22} {:>8} {:>12.2} {:>12.1} {:>10.1} {:>10.2}",
            cost.kernel,
            cost.launches,
            1e6 * cost.seconds / cost.launches as f64,
            1e6 * cost.seconds,
            cost.bytes as f64 / cost.seconds / 1e9,
            cost.flops as f64 / cost.seconds / 1e12
        );
    }
    let _ = writeln!(out, "{:22} {:>8} {:>12} {:>12.1}", "all", "", "", 1e6 * all);
    out
}

/// Dimensions of a preset or of a `config.json`.
fn preset_shape(preset: &str) -> Result<ModelShape> {
    let value = synth::config_for(preset)?;
    let plan = synth::plan(&value, 0)?;
    let config = Config::from_json(&plan.config().to_string(), Path::new(preset))?;
    Ok(model_shape(&config))
}

/// One length: a round that is not counted, then `reps` rounds.
fn measure(engine: &mut Engine, length: usize, args: &BenchArgs) -> Result<Row> {
    let used = engine.shape().vocab_used as u64;
    // Distinct ids, so that no round of tokens repeats a pattern of experts.
    let prompt: Vec<u32> =
        (0..length as u64).map(|i| (i.wrapping_mul(2_654_435_761) % used) as u32).collect();
    let generation =
        Generation { limit: args.decode + 1, stop_ids: Vec::new(), sampling: Sampling::greedy() };
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for rep in 0..=args.reps {
        let sequence = engine.open()?;
        let start = Instant::now();
        let (mut first, mut last, mut tokens) = (None, start, 0usize);
        engine.generate(sequence, &prompt, &generation, &mut |progress| {
            if let Progress::Token(_) = progress {
                last = Instant::now();
                first.get_or_insert(last);
                tokens += 1;
            }
            ControlFlow::Continue(())
        })?;
        engine.close(sequence);
        let first = first.context("no token was chosen")?;
        ensure!(tokens == args.decode + 1, "{tokens} tokens were chosen, need {}", args.decode + 1);
        if rep > 0 {
            prefill.push((first - start).as_secs_f64());
            decode.push((last - first).as_secs_f64() / args.decode as f64);
        }
    }
    let (prefill, decode) = (Times::new(prefill), Times::new(decode));
    let length_f = length as f64;
    Ok(Row {
        length,
        prefill_tok_s: length_f / prefill.median,
        prefill_spread: [length_f / prefill.slowest, length_f / prefill.fastest],
        time_to_first_token_ms: 1e3 * prefill.median,
        decode_tok_s: 1.0 / decode.median,
        decode_spread: [1.0 / decode.slowest, 1.0 / decode.fastest],
    })
}

/// Seconds of some rounds.
struct Times {
    fastest: f64,
    median: f64,
    slowest: f64,
}

impl Times {
    fn new(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        Self {
            fastest: seconds[0],
            median: seconds[seconds.len() / 2],
            slowest: seconds[seconds.len() - 1],
        }
    }
}
