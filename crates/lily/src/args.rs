//! The command line.

mod answer;
mod bench;
mod doctor;
mod kernels;
mod metal;
mod serve;

use std::ops::RangeInclusive;
use std::path::PathBuf;

pub use answer::{ChatArgs, CompletionsArgs, ManArgs, RunArgs};
pub use bench::BenchArgs;
use clap::builder::RangedU64ValueParser;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
pub use doctor::DoctorArgs;
pub use kernels::{ExportArgs, ImportArgs, KernelsArgs, KernelsCommand};
use lily_metal::chip::Gpu;
use lily_model::asked::FEWEST_TOKENS;
use lily_model::engine::{CHUNKS, CONTEXTS};
use lily_model::plan::SHORT_KEYS;
use lily_model::synth::{PRESETS, SynthError};
use lily_plan::Fusions;
pub use metal::MetalArgs;
pub use serve::ServeArgs;

use crate::device::CHUNK;

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
    /// Answer one question, or continue a text.
    #[command(after_help = "Examples:\n  lily run \"What is a prime number?\"\n  \
                            lily run -m ~/models/Qwen3.6-35B-A3B-4bit --raw \"Once upon a time\"\n  \
                            lily run -m tests/golden/heads --tokens 33,86,206 --max-tokens 8")]
    Run(RunArgs),
    /// Talk with a model in the terminal; a pipe sends one turn a line.
    #[command(
        after_help = "Example:\n  lily chat -m ~/models/Qwen3.6-35B-A3B-4bit --system \"Be brief.\""
    )]
    Chat(ChatArgs),
    /// Answer requests over HTTP, in the shape of the OpenAI API.
    #[command(
        after_help = "Example:\n  lily serve -m ~/models/Qwen3.6-35B-A3B-4bit --ctx 32768\n\n\
                      Each request says whether the model thinks (\"enable_thinking\": false); without a\n\
                      word the checkpoint's template decides, which lets it think."
    )]
    Serve(ServeArgs),
    /// Measure prefill and decode speed over growing prompts.
    #[command(
        after_help = "Example:\n  lily bench --preset qwen3.6-35b-a3b --device cuda --json bench.json"
    )]
    Bench(BenchArgs),
    /// Compare a model with recorded logits: perplexity, top-1 agreement, KL, largest difference.
    #[command(
        after_help = "Example:\n  lily eval -m tests/golden/heads --reference tests/golden/heads --exact --json"
    )]
    Eval(EvalArgs),
    /// Print the list of kernel launches that a model runs, with bytes and arithmetic, and for GPUs
    /// the functions.
    #[command(
        after_help = "Examples:\n  lily plan -m qwen3.6-35b-a3b --for metal --position 4096\n  \
                            lily plan --for metal --chip m5-max"
    )]
    Plan(PlanArgs),
    /// Say what this machine has, and check every kernel against its reference.
    #[command(after_help = "Example:\n  lily doctor --device cuda --json")]
    Doctor(DoctorArgs),
    /// Compile kernels for NVIDIA GPUs ahead, and hand them to machines without NVRTC.
    #[command(
        after_help = "Examples:\n  lily kernels export hopper.kernels --arch sm_90a -m qwen3.6-35b-a3b\n  \
                            lily kernels import hopper.kernels"
    )]
    Kernels(KernelsArgs),
    /// Say what a checkpoint folder holds, and whether it is complete and supported.
    #[command(after_help = "Example:\n  lily inspect ~/models/Qwen3.6-35B-A3B-4bit")]
    Inspect(InspectArgs),
    /// Write a random checkpoint of exact shapes.
    #[command(after_help = "Example:\n  lily synth --preset tiny --out /tmp/tiny")]
    Synth(SynthArgs),
    /// Download a model from the Hugging Face hub; a broken off download goes on.
    #[cfg(feature = "pull")]
    #[command(after_help = "Examples:\n  lily pull mlx-community/Qwen3.6-35B-A3B-4bit\n  \
                      lily chat -m mlx-community/Qwen3.6-35B-A3B-4bit\n\n\
                      Environment:\n  HF_HOME      folder of the cache, ~/.cache/huggingface without it\n  \
                      HF_TOKEN     token for gated and private models\n  \
                      HF_ENDPOINT  another hub than https://huggingface.co")]
    Pull(PullArgs),
    /// Print a shell's completion script.
    #[command(
        after_help = "Example:\n  lily completions bash > ~/.local/share/bash-completion/completions/lily"
    )]
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all commands.
    #[command(
        after_help = "Examples:\n  lily man | man -l -\n  lily man --out ~/.local/share/man/man1"
    )]
    Man(ManArgs),
}

/// Where the model is and how it runs.
#[derive(Clone, Args)]
pub struct ModelArgs {
    /// Model folder in the Hugging Face / MLX layout, or a model that `lily pull` downloaded;
    /// without it, and for `nano`, the built-in lily-nano runs, a toy of the same build.
    #[arg(short, long, value_name = "FOLDER|ORG/NAME")]
    pub model: Option<PathBuf>,
    /// Device that runs the model.
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// Compute with f32 activations and an f32 KV cache (CPU only).
    #[arg(long)]
    pub exact: bool,
    /// Threads of the CPU; 0 takes one for each fast physical core, and no more than a container's
    /// quota is worth.
    #[arg(long, default_value_t = 0, value_parser = threads())]
    pub threads: usize,
    /// Where the CPU keeps the weights.
    #[arg(long, value_enum, default_value_t = LoadChoice::Map)]
    pub load: LoadChoice,
    /// How decode steps go to the GPU of a Mac.
    #[command(flatten)]
    pub metal: MetalArgs,
    /// Largest prefill chunk, in tokens; without it 512, on an NVIDIA GPU 2048, or what suits the GPU of a Mac.
    #[arg(long, value_name = "TOKENS", value_parser = within(CHUNKS))]
    pub chunk: Option<usize>,
}

impl ModelArgs {
    /// Whether an option asks for what only the processor has.
    pub fn is_for_processor(&self) -> bool {
        self.exact || self.threads > 0 || self.load != LoadChoice::Map
    }
}

/// Where weights are on the CPU.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LoadChoice {
    /// In their mapped files: nothing is copied, and the system may take the memory back.
    Map,
    /// Read into memory at the start, which the system does not take back.
    Read,
}

/// Devices of this build.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    /// The GPU of an Apple silicon Mac; an NVIDIA GPU for models of 1 GB or more, if it is ready for
    /// them; otherwise the processor.
    Auto,
    /// The processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// The GPU of a Mac.
    Metal,
    /// The Metal texts of the kernels on this processor; for tests, slow.
    #[cfg(feature = "msl-test")]
    MslTest,
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
    /// Model folder, config.json, a preset (qwen3.6-35b-a3b, tiny), a downloaded model, or nano: the
    /// weights are not read. Without it, the preset qwen3.6-35b-a3b.
    #[arg(short, long)]
    pub model: Option<PathBuf>,
    /// Device whose plan is printed.
    #[arg(long = "for", value_enum, default_value_t = PlanDevice::Cpu)]
    pub device: PlanDevice,
    /// Step whose plan is printed.
    #[arg(long, value_enum, default_value_t = PlanStep::Decode)]
    pub step: PlanStep,
    /// Tokens of the prefill chunk; without it what lily would choose: for the chip at the position, 2048 for
    /// NVIDIA GPUs, or 512.
    #[arg(long, value_name = "N", value_parser = within(CHUNKS))]
    pub tokens: Option<usize>,
    /// Tokens already in the cache.
    #[arg(long, default_value_t = 4096, value_name = "N", value_parser = within(0..=MAX_POSITION))]
    pub position: usize,
    /// Sequences decoded together; without it 1.
    #[arg(long, value_name = "N", value_parser = within(CHUNKS))]
    pub batch: Option<usize>,
    /// Launches of a decode step to merge with a neighbour; without it what the device merges: `prepare` on
    /// NVIDIA GPUs.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub fuse: Vec<Fusion>,
    /// Tokens are drawn, not the most likely ones.
    #[arg(long)]
    pub sampled: bool,
    /// With --for metal: predict the time of every launch on a chip, such as m5-max, m4-pro or, of the two
    /// kinds of M4 Max, the one with 32 GPU cores: m4-max-32.
    #[arg(long, value_name = "CHIP", value_parser = Gpu::by_short_name)]
    pub chip: Option<Gpu>,
    /// Memory bandwidth in GB/s, to print the least time that the bytes take.
    #[arg(
        long, value_name = "GB/S", value_parser = bandwidth, conflicts_with_all = ["json", "chip"]
    )]
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
    /// NVIDIA GPUs of compute capability 9.0, such as an H100: bfloat16 matrix inputs and KV cache.
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
    /// Model folder, or a model that `lily pull` downloaded; without it, and for `nano`, the built-in one.
    #[arg(value_name = "FOLDER|ORG/NAME")]
    pub model: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `lily pull`.
#[cfg(feature = "pull")]
#[derive(Args)]
pub struct PullArgs {
    /// Model on the hub; REV is a branch, a tag or a commit, main without it.
    #[arg(value_name = "ORG/NAME[@REV]")]
    pub model: lily_hub::ModelId,
    /// Compute the hashes of files that are in the cache already, too.
    #[arg(long)]
    pub check: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `lily synth`.
#[derive(Args)]
pub struct SynthArgs {
    /// qwen3.6-35b-a3b, tiny, or a config.json.
    #[arg(long, value_name = "NAME|FILE.json", value_parser = preset)]
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
    /// Replace a model that is in the folder, be it the same one.
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

impl PlanArgs {
    /// The size of the step: tokens of a chunk, or sequences. `chunk` is the largest chunk that is chosen by itself.
    ///
    /// # Errors
    /// An option is given that the step does not have.
    pub fn rows(&self, chunk: usize) -> Result<usize, clap::Error> {
        if self.chip.is_some() && self.device != PlanDevice::Metal {
            return Err(conflict("plan", "--chip has no effect without --for metal"));
        }
        if self.step == PlanStep::Decode
            && self.fuse.contains(&Fusion::Short)
            && self.position >= SHORT_KEYS
        {
            let most = SHORT_KEYS - 1;
            let message = format!("--fuse short has no effect beyond --position {most}");
            return Err(conflict("plan", &message));
        }
        let (step, rows, stray) = match self.step {
            PlanStep::Decode => {
                ("decode", self.batch.unwrap_or(1), self.tokens.map(|_| "--tokens"))
            }
            PlanStep::Prefill if !self.fuse.is_empty() => ("prefill", 0, Some("--fuse")),
            PlanStep::Prefill => {
                ("prefill", self.tokens.unwrap_or(chunk), self.batch.map(|_| "--batch"))
            }
        };
        match stray {
            None => Ok(rows),
            Some(option) => {
                Err(conflict("plan", &format!("{option} has no effect with --step {step}")))
            }
        }
    }

    /// The largest prefill chunk of the device where no chip is named.
    pub fn chunk(&self) -> usize {
        match self.device {
            PlanDevice::Cuda => lily_cuda::CHUNK,
            PlanDevice::Cpu | PlanDevice::Metal => CHUNK,
        }
    }

    /// The launches that are merged: those that are named, or what the device asks for.
    pub fn fusions(&self) -> Fusions {
        if self.fuse.is_empty() {
            return match self.device {
                PlanDevice::Cuda => lily_cuda::FUSIONS,
                PlanDevice::Cpu | PlanDevice::Metal => Fusions::default(),
            };
        }
        Fusions {
            topk: self.fuse.contains(&Fusion::Topk),
            prepare: self.fuse.contains(&Fusion::Prepare),
            short: self.fuse.contains(&Fusion::Short),
        }
    }
}

impl Command {
    /// Name and model of a command that runs one.
    fn model(&self) -> Option<(&'static str, &ModelArgs)> {
        match self {
            Self::Run(args) => Some(("run", &args.model)),
            Self::Chat(args) => Some(("chat", &args.model)),
            Self::Serve(args) => Some(("serve", &args.model)),
            Self::Bench(args) => Some(("bench", &args.model)),
            Self::Eval(args) => Some(("eval", &args.model)),
            _ => None,
        }
    }

    /// Checks that the device has what is asked of it.
    ///
    /// # Errors
    /// An option is given that the device does not have.
    pub fn check_device(&self) -> Result<(), clap::Error> {
        let Some((command, model)) = self.model() else { return Ok(()) };
        model.metal.check(command, model.device)?;
        let (device, takes_threads) = match model.device {
            DeviceChoice::Auto | DeviceChoice::Cpu => return Ok(()),
            DeviceChoice::Cuda => ("cuda", false),
            DeviceChoice::Metal => ("metal", false),
            #[cfg(feature = "msl-test")]
            DeviceChoice::MslTest => ("msl-test", true),
        };
        let stray = match model {
            ModelArgs { exact: true, .. } => "--exact",
            ModelArgs { load: LoadChoice::Read, .. } => "--load",
            ModelArgs { threads: 1.., .. } if !takes_threads => "--threads",
            _ => return Ok(()),
        };
        Err(conflict(command, &format!("{stray} has no effect with --device {device}")))
    }
}

/// A name of shapes, or a file of them.
fn preset(text: &str) -> Result<String, SynthError> {
    match PRESETS.contains(&text) || text.ends_with(".json") {
        true => Ok(text.into()),
        false => Err(SynthError::UnknownPreset { found: text.into() }),
    }
}

/// An error of usage that clap cannot see by itself.
fn conflict(command: &str, message: &str) -> clap::Error {
    let mut program = Program::command();
    program.build();
    let mut command = program.find_subcommand(command).cloned().unwrap_or(program);
    command.error(ErrorKind::ArgumentConflict, message)
}

/// Far behind the last position of any context.
const MAX_POSITION: usize = *CONTEXTS.end() - 1;

/// A number within a range of the engine.
fn within(range: RangeInclusive<usize>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(*range.start() as u64..=*range.end() as u64)
}

/// Positions of a context.
fn context() -> RangedU64ValueParser<usize> {
    within(CONTEXTS)
}

/// Tokens of an answer: at most as many as a context holds.
fn max_tokens() -> RangedU64ValueParser<usize> {
    within(FEWEST_TOKENS..=*CONTEXTS.end())
}

fn bandwidth(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    let usable = value.is_finite() && value > 0.0;
    usable.then_some(value).ok_or_else(|| "need a number of GB/s above 0".into())
}

/// More threads than any machine runs at once are a slip of the pen.
fn threads() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(0..=1024)
}
