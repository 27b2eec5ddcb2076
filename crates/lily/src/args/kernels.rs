//! Arguments of `lily kernels`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use lily_cuda::compiler::Architecture;
use lily_model::engine::{CHUNKS, CONTEXTS};

use super::within;

/// `lily kernels`.
#[derive(Args)]
pub struct KernelsArgs {
    /// What to do with them.
    #[command(subcommand)]
    pub command: KernelsCommand,
}

/// What is done with compiled kernels.
#[derive(Subcommand)]
pub enum KernelsCommand {
    /// Compile what a model needs for a generation of NVIDIA GPUs, into one file; needs NVRTC, and
    /// no GPU.
    Export(ExportArgs),
    /// Put exported kernels into the cache of this machine, which then needs no NVRTC for them.
    Import(ImportArgs),
}

/// `lily kernels export`.
#[derive(Args)]
pub struct ExportArgs {
    /// File to write.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Model folder, config.json, a preset (qwen3.6-35b-a3b, tiny), or a downloaded model: the
    /// weights are not read.
    #[arg(short, long)]
    pub model: PathBuf,
    /// Generation of the GPU: sm_90a for Hopper, sm_80 for the A100.
    #[arg(long, value_name = "SM", value_parser = Architecture::parse)]
    pub arch: Architecture,
    /// Longest context that will be asked for, in tokens; without it the model's own.
    #[arg(long = "ctx", value_name = "TOKENS", value_parser = within(CONTEXTS))]
    pub context: Option<usize>,
    /// Largest prefill chunk that will be asked for, in tokens.
    #[arg(long, default_value_t = lily_cuda::CHUNK, value_name = "TOKENS", value_parser = within(CHUNKS))]
    pub chunk: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `lily kernels import`.
#[derive(Args)]
pub struct ImportArgs {
    /// File that `lily kernels export` has written.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}
