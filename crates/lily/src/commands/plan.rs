//! `lily plan`: the launches of a step, from `config.json` alone.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use lily_kernels::gpu::{Family, Target, add_entries};
use lily_kernels::{ModelShape, SessionShape};
use lily_metal::chip::{Gpu, Policy, SelfTest, TENSOR_OS, choose_products};
use lily_metal::encoder::{DecodeSubmission, Estimate, Pace};
use lily_metal::predict::{Prediction, predict};
use lily_model::Config;
use lily_model::engine::{chunk_at, whole_plan};
use lily_model::plan::{
    Choice, LengthBucket, MatrixBytes, PlanBuilder, PrefillEnd, config_matrix_bytes,
    config_matrix_formats, declare, model_shape, splits,
};
use lily_model::synth::{self, PRESETS, preset};
use lily_plan::{Live, Plan, PlanError, PlanTable, Precision, Step, control};
use serde::Serialize;

use crate::args::{PlanArgs, PlanDevice, PlanStep};
use crate::model::{Source, note_long_context};
use crate::output::{note, print, print_json, sentence};

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<ExitCode> {
    let policy = args.chip.as_ref().map(policy);
    let mut rows = args.rows(policy.map_or(args.chunk(), |policy| policy.chunk))?;
    let config = config(args)?;
    let steps = Steps::new(args, &config);
    let chip = args.chip.as_ref().zip(policy);
    let pace = chip.map(|(gpu, policy)| Pace::of(gpu, policy.target.products));
    if let (PlanStep::Prefill, None, Some(pace)) = (args.step, args.tokens, pace) {
        rows = chunk_at(rows, args.position, |tokens| {
            let plan = steps.build(tokens, |builder| whole_plan(builder, tokens))?;
            anyhow::Ok(Estimate::new(&plan, pace).whole_below())
        })?;
    }
    let (tokens, _) = steps.tokens_and_batch(rows);
    note_long_context(&config, args.position + tokens);
    let plan = steps.plan(rows)?;
    let target = match args.device {
        PlanDevice::Cpu => None,
        PlanDevice::Metal => Some(policy.map_or(Target::APPLE, |policy| policy.target)),
        PlanDevice::Cuda => Some(Target::NVIDIA),
    };
    let mut table = table(args, &config, &plan);
    if let Some(target) = target {
        add_entries(&mut table, &plan, &config_matrix_formats(&config), target)?;
    }
    let predicted = chip.zip(pace).map(|((gpu, policy), pace)| {
        let estimate = Estimate::new(&plan, pace);
        let cuts = estimate.cuts(args.position, DecodeSubmission::Whole);
        let too_long = estimate.too_long(args.position);
        predict(&table, rows, gpu, policy.target.products).cut(&cuts, too_long)
    });
    if args.json {
        print_json(&Printed { table: &table, prediction: predicted.as_ref() })?;
    } else if let Some(prediction) = predicted {
        print(prediction.text())?;
    } else {
        let mut text = table.summary();
        if let Some(Family::Nvidia { capability }) = target.map(|target| target.family) {
            let (major, minor) = (capability / 10, capability % 10);
            text += &format!("the functions are those of compute capability {major}.{minor}\n");
        }
        if let Some(bandwidth) = args.bandwidth {
            let bytes = (table.bytes_read + table.bytes_written) as f64;
            let time = bytes / bandwidth / 1e6;
            text += &format!("at {bandwidth} GB/s the bytes take at least {time:.3} ms\n");
        }
        print(text + "\n" + &table.rows())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The model that is named, or the full-size one, which is then announced.
fn config(args: &PlanArgs) -> Result<Config> {
    if let Some(model) = &args.model {
        return read_config(model);
    }
    let preset = PRESETS[0];
    note(format_args!("lily: no model given: this is the plan of {preset}; use -m for another"));
    read_config(Path::new(preset))
}

/// The steps of a model, with any number of rows.
struct Steps<'a> {
    args: &'a PlanArgs,
    shape: ModelShape,
    matrices: MatrixBytes,
    context: usize,
}

impl<'a> Steps<'a> {
    fn new(args: &'a PlanArgs, config: &Config) -> Self {
        let (shape, matrices) = (model_shape(config), config_matrix_bytes(config));
        Self { args, shape, matrices, context: config.max_position_embeddings }
    }

    /// Tokens of each sequence, and sequences.
    fn tokens_and_batch(&self, rows: usize) -> (usize, usize) {
        match self.args.step {
            PlanStep::Decode => (1, rows),
            PlanStep::Prefill => (rows, 1),
        }
    }

    /// The plan that is asked for.
    fn plan(&self, rows: usize) -> Result<Plan> {
        let args = self.args;
        let (choice, prefill_end) = match args.sampled {
            true => (Choice::Draw, PrefillEnd::Draw),
            false => (Choice::Device, PrefillEnd::Sample),
        };
        self.build(rows, |builder| match args.step {
            PlanStep::Decode => {
                builder.decode(LengthBucket::new(args.position + 1, args.fusions()), choice)
            }
            PlanStep::Prefill => builder.prefill(rows, 0, prefill_end),
        })
    }

    fn build(
        &self,
        rows: usize,
        build: impl FnOnce(&PlanBuilder<'_>) -> Result<Plan, PlanError>,
    ) -> Result<Plan> {
        let (tokens, batch) = self.tokens_and_batch(rows);
        let capacity = self.context.max(self.args.position + tokens);
        let session = SessionShape {
            batch,
            tokens,
            capacity,
            run_ahead: 1,
            splits: splits(capacity),
            ring: 64,
            logit_rows: batch,
            precision: match self.args.device {
                PlanDevice::Cpu => lily_cpu::DEFAULT_PRECISION,
                PlanDevice::Metal => Precision::BF16,
                PlanDevice::Cuda => lily_cuda::PRECISION,
            },
        };
        let buffers = declare(&self.shape, &session, &self.matrices);
        Ok(build(&PlanBuilder::new(&self.shape, &session, &buffers, self.args.fusions()))?)
    }
}

/// The launches of a plan behind `--position` tokens, with what they cost there.
fn table(args: &PlanArgs, config: &Config, plan: &Plan) -> PlanTable {
    let (tokens, batch) = match plan.step() {
        Step::Decode { batch } => (1, batch),
        Step::Prefill { tokens, .. } => (tokens, 1),
    };
    let mut control_rows = vec![0; batch * control::WORDS];
    for row in control_rows.chunks_mut(control::WORDS) {
        row[control::POSITION] = args.position as i32;
        row[control::COUNT] = tokens as i32;
    }
    let vocab = model_shape(config).vocab as i32;
    let prompt: Vec<i32> = (0..tokens as i32).map(|i| i % vocab).collect();
    PlanTable::new(plan, &Live::new(plan.step(), &control_rows, &prompt, None))
}

/// The printed plan as one JSON object.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    table: &'a PlanTable,
    /// Predicted times, with `--chip`.
    #[serde(skip_serializing_if = "Option::is_none")]
    prediction: Option<&'a Prediction>,
}

/// What lily would choose on a chip whose system is new enough and whose self-test passes.
fn policy(gpu: &Gpu) -> Policy {
    let choice = choose_products(TENSOR_OS, gpu.family, SelfTest::Passed);
    Policy::new(gpu, choice.products)
}

/// A `config.json`, the name of a preset, a model folder, or a model on the hub.
pub fn read_config(model: &Path) -> Result<Config> {
    if model.is_file() {
        return Ok(Config::read_file(model)?);
    }
    if let Some(preset) = model.to_str().and_then(preset).filter(|_| !model.exists()) {
        let text = synth::plan(&preset, 0)?.config().to_string();
        return Ok(Config::from_json(&text, model)?);
    }
    let source = Source::locate(model).map_err(|error| {
        let presets = PRESETS.join(", ");
        anyhow!(
            "{}; a config.json by itself and a preset ({presets}) will do too",
            sentence(&error)
        )
    })?;
    source.config().cloned()
}
