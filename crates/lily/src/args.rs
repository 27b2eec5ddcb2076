//! The command line.

mod serve;

use std::path::PathBuf;

pub use serve::ServeArgs;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// A local inference engine for Qwen3.5/3.6 mixture-of-experts models.
#[derive(Parser)]
#[command(name = "lily", version, arg_required_else_help = true)]
pub struct Program {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands.
#[derive(Subcommand)]
pub enum Command {
    /// Generate tokens after a prompt.
    #[command(
        after_help = "Example:\n  lily run -m tests/golden/heads --tokens 33,86,206 --max-tokens 8"
    )]
    Run(RunArgs),
    /// Answer requests over HTTP, in the shape of the OpenAI API.
    #[command(after_help = "Example:\n  lily serve -m ~/models/Qwen3.6-35B-A3B-4bit --ctx 32768")]
    Serve(ServeArgs),
    /// Compare a model with recorded logits: perplexity, top-1 agreement, KL, largest difference.
    #[command(
        after_help = "Example:\n  lily eval -m tests/golden/heads --reference tests/golden/heads --exact --json"
    )]
    Eval(EvalArgs),
    /// Print the list of kernel launches that a model runs, with bytes and arithmetic.
    #[command(after_help = "Example:\n  lily plan -m qwen3.6-35b-a3b --for metal --position 4096")]
    Plan(PlanArgs),
    /// Say what a checkpoint folder holds, and whether it is complete and supported.
    #[command(after_help = "Example:\n  lily inspect ~/models/Qwen3.6-35B-A3B-4bit")]
    Inspect(InspectArgs),
    /// Write a random checkpoint of exact shapes.
    #[command(after_help = "Example:\n  lily synth --preset tiny --out /tmp/tiny")]
    Synth(SynthArgs),
}

/// Where the model is and how it runs.
#[derive(Args)]
pub struct ModelArgs {
    /// Model folder in the Hugging Face / MLX layout.
    #[arg(short, long)]
    pub model: PathBuf,
    /// Device that runs the model.
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// Compute with f32 activations and an f32 KV cache.
    #[arg(long)]
    pub exact: bool,
    /// Threads; 0 takes the machine's.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Largest prefill chunk, in tokens.
    #[arg(long, default_value_t = 512, value_name = "TOKENS")]
    pub chunk: usize,
}

/// Devices of this build.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    /// The best device of this machine; the CPU is the only one so far.
    Auto,
    /// The processor.
    Cpu,
}

/// `lily run`.
#[derive(Args)]
pub struct RunArgs {
    /// Model and device.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The prompt as token ids, separated by commas.
    #[arg(long, value_delimiter = ',', required = true, value_name = "IDS")]
    pub tokens: Vec<u32>,
    /// Most tokens to generate.
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub max_tokens: usize,
    /// Positions of the context; without it, what the prompt and --max-tokens need.
    #[arg(long, value_name = "TOKENS")]
    pub ctx: Option<usize>,
    /// Randomness; 0 takes the most likely token.
    #[arg(long, default_value_t = 0.0)]
    pub temperature: f32,
    /// Keep the K most likely tokens; 0 keeps all.
    #[arg(long, default_value_t = 0, value_name = "K")]
    pub top_k: usize,
    /// Keep the smallest set of tokens with this probability.
    #[arg(long, default_value_t = 1.0, value_name = "P")]
    pub top_p: f32,
    /// Keep tokens with at least this share of the largest probability.
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    pub min_p: f32,
    /// Subtracted from the logits of tokens generated before.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Subtracted from the logits for each time a token was generated before.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Divides the logits of tokens seen before.
    #[arg(long, default_value_t = 1.0)]
    pub repetition_penalty: f32,
    /// Key of the random numbers: the same seed gives the same tokens.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Added to the logit of a token: ID=VALUE, may be given several times.
    #[arg(long, value_name = "ID=VALUE", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Go on after the model's stop tokens.
    #[arg(long)]
    pub ignore_stop: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `lily eval`.
#[derive(Args)]
pub struct EvalArgs {
    /// Model and device.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Folder with prompts.json and logits_*.safetensors.
    #[arg(long, value_name = "DIR")]
    pub reference: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `lily plan`.
#[derive(Args)]
pub struct PlanArgs {
    /// Model folder, config.json, or qwen3.6-35b-a3b: no weights are needed.
    #[arg(short, long)]
    pub model: PathBuf,
    /// Device whose plan is printed.
    #[arg(long = "for", value_enum, default_value_t = PlanDevice::Cpu)]
    pub device: PlanDevice,
    /// Step whose plan is printed.
    #[arg(long, value_enum, default_value_t = PlanStep::Decode)]
    pub step: PlanStep,
    /// Tokens of the prefill chunk.
    #[arg(long, default_value_t = 512, value_name = "N")]
    pub tokens: usize,
    /// Tokens already in the cache.
    #[arg(long, default_value_t = 4096, value_name = "N")]
    pub position: usize,
    /// Sequences decoded together.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub batch: usize,
    /// Launches of a decode step to merge with a neighbour.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub fuse: Vec<Fusion>,
    /// Memory bandwidth in GB/s, to print the least time that the bytes take.
    #[arg(long, value_name = "GB/S")]
    pub bandwidth: Option<f64>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Devices that `lily plan` knows.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlanDevice {
    /// This machine's processor.
    Cpu,
    /// Apple GPUs: bfloat16 matrix inputs and KV cache.
    Metal,
    /// NVIDIA GPUs: bfloat16 matrix inputs and KV cache.
    Cuda,
}

/// Launches that can be merged.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Fusion {
    /// The choice of experts, into its two consumers.
    Topk,
    /// Norm and rotary, into attention.
    Prepare,
    /// All of attention over at most 256 keys, into one launch.
    Short,
}

/// Steps that `lily plan` knows.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlanStep {
    /// One token of every sequence.
    Decode,
    /// A chunk of a prompt.
    Prefill,
}

/// `lily inspect`.
#[derive(Args)]
pub struct InspectArgs {
    /// Model folder.
    pub model: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `lily synth`.
#[derive(Args)]
pub struct SynthArgs {
    /// qwen3.6-35b-a3b, tiny, or a config.json.
    #[arg(long, value_name = "NAME|FILE.json")]
    pub preset: String,
    /// Folder to write to.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Seed of all values.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Keep only the first N layers.
    #[arg(long, value_name = "N")]
    pub layers: Option<usize>,
    /// Replace a model that is in the folder.
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let (id, value) = text.split_once('=').ok_or("expected ID=VALUE, such as 42=-5")?;
    let id = id.trim().parse().map_err(|e| format!("`{id}` is no token id: {e}"))?;
    let value = value.trim().parse().map_err(|e| format!("`{value}` is no number: {e}"))?;
    Ok((id, value))
}
