//! `lily bench`: prefill and decode speed over growing prompts.

mod chart;
mod measure;
mod profile;

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use lily_kernels::ModelShape;
use lily_model::engine::{Engine, EngineOptions, Measured};
use lily_model::plan::model_shape;
use lily_model::{Config, synth};
use serde::Serialize;

use crate::args::BenchArgs;
use crate::device::{self, Opened, Task};
use crate::model::{Source, set_up};
use crate::output::{create_file, note, print};
use measure::{Row, choice, measure};
use profile::profile;

/// Runs of a profile.
const PROFILE_RUNS: usize = 10;

/// The figures of a run.
#[derive(Serialize)]
struct Report {
    device: String,
    model: String,
    /// Whether tokens were drawn; otherwise they are the most likely ones.
    sampled: bool,
    /// Bytes that the device reads in a second, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_bandwidth: Option<f64>,
    rows: Vec<Row>,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    args.check()?;
    // Now: a long measurement must not end with a file that cannot be written.
    let json = args.json.as_deref().map(create).transpose()?;
    let plot = args.plot.as_deref().map(create).transpose()?;
    let subject = match &args.preset {
        Some(preset) => Subject::preset(args, preset)?,
        None => Subject::model(args, &Source::find(&args.model)?)?,
    };
    let Subject { mut engine, model, lengths, device, read_bandwidth } = subject;
    let sampled = args.sampled;
    let how = if sampled { "sampled" } else { "greedy" };
    note(format_args!("lily: {model} on {device}, {how}"));
    let mut report = Report { device, model, sampled, read_bandwidth, rows: Vec::new() };
    print(HEAD)?;
    for &length in &lengths {
        let row = measure(&mut engine, length, args, read_bandwidth)?;
        print(line(&row))?;
        report.rows.push(row);
    }
    if args.profile {
        print_profiles(args, &mut engine, longest(&lengths))?;
    }
    if let Some(file) = json {
        write(file, &(serde_json::to_string_pretty(&report)? + "\n"))?;
    }
    if let Some(file) = plot {
        write(file, &chart::svg(&report)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is measured.
struct Subject {
    engine: Engine,
    /// Name, for people.
    model: String,
    /// Prompt lengths.
    lengths: Vec<usize>,
    /// The device, for people.
    device: String,
    /// Bytes that the device reads in a second.
    read_bandwidth: Option<f64>,
}

impl Subject {
    /// A model on the device that is asked for.
    fn model(args: &BenchArgs, source: &Source) -> Result<Self> {
        let lengths = args.lengths(source.config()?.max_position_embeddings);
        let options = options(args, &lengths);
        let checked = source.check(options.context)?;
        let name = source.name.clone();
        Self::begin(args, name, lengths, &checked.task(options), |opened, options| {
            checked.engine(opened, options)
        })
    }

    /// The same for random weights.
    fn preset(args: &BenchArgs, preset: &str) -> Result<Self> {
        let lengths = args.lengths(usize::MAX);
        let shape = preset_shape(preset)?;
        let weights = synth::random_weights(&shape, 0);
        let task = Task { shape: &shape, weights: &weights, options: options(args, &lengths) };
        let name = format!("{preset}, random weights");
        Self::begin(args, name, lengths, &task, |opened, options| {
            set_up(opened, &Task { options, ..task })
        })
    }

    /// The bandwidth is measured while the device's memory is free.
    fn begin(
        args: &BenchArgs,
        model: String,
        lengths: Vec<usize>,
        task: &Task<'_>,
        set_up: impl Fn(Opened, EngineOptions) -> Result<Engine>,
    ) -> Result<Self> {
        let (engine, device, read_bandwidth) = device::start(&args.model, task, |mut opened| {
            let options = opened.options(&args.model, task.options);
            let device = opened.description.clone();
            let read_bandwidth = opened.device.read_bandwidth()?;
            Ok((set_up(opened, options)?, device, read_bandwidth))
        })?;
        Ok(Self { engine, model, lengths, device, read_bandwidth })
    }
}

/// Room for the longest prompt, what is decoded behind it, and a profile.
fn options(args: &BenchArgs, lengths: &[usize]) -> EngineOptions {
    // A profile runs a chunk, and steps, behind the longest prompt. No device's own chunk is larger than this one.
    let behind = match args.profile {
        true => args.model.chunk.unwrap_or(lily_cuda::CHUNK) + PROFILE_RUNS,
        false => 0,
    };
    let context = longest(lengths) + args.decode + 1 + behind;
    EngineOptions { context, ..EngineOptions::default() }
}

fn longest(lengths: &[usize]) -> usize {
    lengths.iter().copied().max().unwrap_or(0)
}

/// Prints where the time goes behind the longest prompt.
fn print_profiles(args: &BenchArgs, engine: &mut Engine, longest: usize) -> Result<()> {
    let chunk = engine.options().chunk.min(longest);
    let decode = ("decode step", Measured::Decode(choice(args)));
    for (name, step) in [decode, ("prefill chunk", Measured::Prefill(chunk))] {
        let sequence = engine.open()?;
        let costs = engine.profile(sequence, step, longest, PROFILE_RUNS);
        engine.close(sequence);
        print(profile(&format!("{name} after {longest} tokens"), &costs?))?;
    }
    Ok(())
}

const HEAD: &str = "  length  prefill tok/s  first token, ms   decode tok/s  launches  stages  MB/token      GB/s\n";

/// A row of the table.
fn line(row: &Row) -> String {
    let share = row.decode_bandwidth_share.map(|share| format!(" ({:.0} %)", 100.0 * share));
    format!(
        "{:>8} {:>14.1} {:>16.2} {:>14.1} {:>9} {:>7} {:>9.1} {:>9.1}{}\n",
        row.length,
        row.prefill_tok_s,
        row.time_to_first_token_ms,
        row.decode_tok_s,
        row.decode_launches,
        row.decode_stages,
        row.decode_bytes_per_token as f64 / 1e6,
        row.decode_bytes_per_second / 1e9,
        share.unwrap_or_default(),
    )
}

/// The file of the figures, empty.
fn create(path: &Path) -> Result<(File, &Path)> {
    Ok((create_file(path)?, path))
}

fn write((mut file, path): (File, &Path), text: &str) -> Result<()> {
    let written = file.write_all(text.as_bytes());
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Dimensions of a preset or of a `config.json`.
fn preset_shape(preset: &str) -> Result<ModelShape> {
    let value = synth::config_for(preset)?;
    let plan = synth::plan(&value, 0)?;
    let config = Config::from_json(&plan.config().to_string(), Path::new(preset))?;
    Ok(model_shape(&config))
}
