//! Opens the device that runs a model.

mod auto;

use anyhow::Result;
use lily_cpu::{CpuDevice, CpuOptions, Load, Numerics, Simd};
use lily_cuda::compiler::Compiler;
use lily_cuda::{CudaDevice, CudaError, CudaOptions};
use lily_kernels::ModelShape;
#[cfg(target_os = "macos")]
use lily_metal::{
    Host as _, MetalDevice, MetalOptions,
    encoder::{DecodeEncoding, DecodeSubmission},
    host::{AppleHost, AppleOptions},
};
use lily_model::engine::EngineOptions;
#[cfg(feature = "msl-test")]
use lily_msl_test::{MslOptions, MslTestDevice};
use lily_plan::{Device, Weights};

#[cfg(target_os = "macos")]
use crate::args::MetalArgs;
use crate::args::{DeviceChoice, LoadChoice, ModelArgs};
use crate::output::{note, sentence};

/// An opened device with what the engine should know about it.
pub struct Opened {
    /// The device.
    pub device: Box<dyn Device>,
    /// Steps to submit before the first of them is read.
    pub steps_ahead: usize,
    /// Largest prefill chunk where the command line names none, in tokens.
    pub chunk: usize,
    /// What it is, for people.
    pub description: String,
}

impl Opened {
    /// An engine's options with what is the device's part of them.
    pub fn options(&self, args: &ModelArgs, base: EngineOptions) -> EngineOptions {
        options(args, base, self.chunk, self.steps_ahead)
    }
}

fn options(
    args: &ModelArgs,
    base: EngineOptions,
    chunk: usize,
    steps_ahead: usize,
) -> EngineOptions {
    EngineOptions {
        chunk: args.chunk.unwrap_or(chunk),
        run_ahead: steps_ahead.max(1),
        steps_ahead,
        ..base
    }
}

/// A model that is to be run.
pub struct Task<'a> {
    /// Dimensions.
    pub shape: &'a ModelShape,
    /// Weights.
    pub weights: &'a Weights,
    /// Options of the engine, but for the device's part of them.
    pub options: EngineOptions,
}

/// Largest prefill chunk of devices that have no reason for another one, in tokens.
pub const CHUNK: usize = 512;

/// Steps that a GPU has ahead: the host reads a token while the next step runs.
const GPU_STEPS_AHEAD: usize = 1;

/// Begins with a model on the device that the command line asks for. `auto` is the GPU of an Apple silicon Mac, or
/// the first NVIDIA GPU if [`auto`] finds it fit, and otherwise the processor. A model that cannot begin on that NVIDIA
/// GPU all the same begins on the processor: without a GPU it would have.
///
/// # Errors
/// The device is not there, or lacks something; or what `begin` says.
pub fn start<T>(
    args: &ModelArgs,
    task: &Task<'_>,
    begin: impl Fn(Opened) -> Result<T>,
) -> Result<T> {
    let gpu = match args.device {
        DeviceChoice::Auto => auto::nvidia(args, task),
        _ => None,
    };
    first_or(gpu.map(&begin), || begin(open(args)?))
}

/// As `auto` where no model is named: the first NVIDIA GPU if it opens and its kernels can be compiled, and otherwise
/// the processor.
///
/// # Errors
/// What `processor` says.
pub fn nvidia_or<T>(
    gpu: impl FnOnce(CudaDevice) -> Result<T>,
    processor: impl FnOnce() -> Result<T>,
) -> Result<T> {
    first_or(auto::any_nvidia().map(gpu), processor)
}

/// What was begun on a GPU. If that failed, a line says so, and the other device has its turn.
fn first_or<T>(begun: Option<Result<T>>, other: impl FnOnce() -> Result<T>) -> Result<T> {
    match begun {
        Some(Err(error)) => {
            auto::note_passed_over(&sentence(&error));
            other()
        }
        Some(begun) => begun,
        None => other(),
    }
}

/// Opens the device that the command line asks for; `auto` knows the GPU of a Mac and the processor here.
fn open(args: &ModelArgs) -> Result<Opened> {
    match args.device {
        DeviceChoice::Auto => open_best(args),
        DeviceChoice::Cpu => open_cpu(args),
        DeviceChoice::Cuda => Ok(opened_cuda(cuda()?)),
        DeviceChoice::Metal => open_metal(args),
        #[cfg(feature = "msl-test")]
        DeviceChoice::MslTest => Ok(open_msl_test(args)),
    }
}

/// The GPU of an Apple silicon Mac, unless an option asks for what only the processor has; otherwise the processor.
fn open_best(args: &ModelArgs) -> Result<Opened> {
    #[cfg(target_os = "macos")]
    if !args.is_for_processor()
        && let Some(device) = best_metal()
    {
        return Ok(opened_metal(device));
    }
    open_cpu(args)
}

/// The GPU that `--device auto` takes. One of a virtual machine has to be asked for by name.
#[cfg(target_os = "macos")]
pub fn best_metal() -> Option<MetalDevice<AppleHost>> {
    metal(MetalOptions::default()).ok().filter(|device| device.host().system().is_apple_silicon())
}

fn open_cpu(args: &ModelArgs) -> Result<Opened> {
    let numerics = if args.exact { Numerics::Exact } else { Numerics::Int8 };
    let load = match args.load {
        LoadChoice::Map => Load::Map,
        LoadChoice::Read => Load::Read,
    };
    let (threads, simd) = (args.threads, Simd::from_environment()?);
    let options = CpuOptions { numerics, threads, load, simd, ..CpuOptions::default() };
    let device = CpuDevice::new(options);
    if device.is_crowded() {
        note(format_args!(
            "lily: warning: {} threads on {} slow each other down; without --threads there are as many as suit",
            device.threads(),
            device.cores()
        ));
    }
    let description = format!("cpu, {} threads", device.threads());
    Ok(Opened { device: Box::new(device), steps_ahead: 0, chunk: CHUNK, description })
}

/// The processor with mapped weights; 0 threads are as many as suit its cores.
///
/// # Errors
/// The environment names an instruction set that is none of this machine's.
pub fn cpu(numerics: Numerics, threads: usize) -> Result<CpuDevice> {
    let simd = Simd::from_environment()?;
    Ok(CpuDevice::new(CpuOptions { numerics, threads, simd, ..CpuOptions::default() }))
}

fn opened_cuda(device: CudaDevice) -> Opened {
    let info = device.info();
    let (major, minor) = info.capability;
    let gigabytes = info.memory_bytes / 1_000_000_000;
    let description = format!("{}, compute capability {major}.{minor}, {gigabytes} GB", info.name);
    Opened {
        steps_ahead: GPU_STEPS_AHEAD,
        chunk: lily_cuda::CHUNK,
        description,
        device: Box::new(device),
    }
}

/// The first NVIDIA GPU.
///
/// # Errors
/// There is none, or the driver is missing.
pub fn cuda() -> Result<CudaDevice, CudaError> {
    let cache = Compiler::default_cache();
    CudaDevice::new(CudaOptions { index: 0, nvrtc: nvrtc(), cache })
}

#[cfg(not(target_os = "macos"))]
fn open_metal(_: &ModelArgs) -> Result<Opened> {
    anyhow::bail!(NO_MAC)
}

/// What `--device metal` says where there is no Metal.
#[cfg(not(target_os = "macos"))]
pub const NO_MAC: &str =
    "--device metal needs a Mac with macOS 15 or later; use --device cpu or --device cuda here";

#[cfg(target_os = "macos")]
fn open_metal(args: &ModelArgs) -> Result<Opened> {
    let MetalArgs { encode_once, commit_early } = args.metal;
    let options = MetalOptions {
        decode: match commit_early {
            0 => DecodeSubmission::Whole,
            stages => DecodeSubmission::Early { stages },
        },
        encoding: if encode_once { DecodeEncoding::Once } else { DecodeEncoding::EachStep },
        ..MetalOptions::default()
    };
    Ok(opened_metal(metal(options)?))
}

#[cfg(target_os = "macos")]
fn opened_metal(device: MetalDevice<AppleHost>) -> Opened {
    Opened {
        steps_ahead: GPU_STEPS_AHEAD,
        // Deep in a context they are smaller: macOS ends what holds the GPU for seconds.
        chunk: device.host().policy().chunk,
        description: device.host().description(),
        device: Box::new(device),
    }
}

/// The GPU of this Mac.
///
/// # Errors
/// There is none, or macOS is too old.
#[cfg(target_os = "macos")]
pub fn metal(options: MetalOptions) -> Result<MetalDevice<AppleHost>> {
    let host = AppleHost::open(AppleOptions::default())?;
    Ok(MetalDevice::new(host, options))
}

/// The NVRTC library that the environment names.
pub fn nvrtc() -> Option<std::path::PathBuf> {
    std::env::var_os("LILY_NVRTC").map(Into::into)
}

#[cfg(feature = "msl-test")]
fn open_msl_test(args: &ModelArgs) -> Opened {
    let (device, workers) = msl_test(args.threads);
    Opened {
        device: Box::new(device),
        steps_ahead: 0,
        chunk: CHUNK,
        description: format!("MSL test device, {workers} threads"),
    }
}

/// The MSL test device and its threads; 0 are the machine's.
#[cfg(feature = "msl-test")]
pub fn msl_test(threads: usize) -> (MslTestDevice, usize) {
    let machine = || std::thread::available_parallelism().map_or(1, usize::from);
    let workers = if threads == 0 { machine() } else { threads };
    (MslTestDevice::new(MslOptions { workers, ..MslOptions::default() }), workers)
}

#[cfg(test)]
mod tests {
    use lily_model::engine::MemoryPlan;
    use lily_model::plan::{config_matrix_bytes, model_shape, splits};
    use lily_model::{Config, synth};

    use super::*;

    /// What `lily serve` asks for, with the chunk of NVIDIA GPUs, on one of 24 GiB.
    #[test]
    fn the_full_size_model_fits_a_gpu_of_24_gib_with_the_default_chunk() {
        let preset = synth::preset(synth::PRESETS[0]).expect("a preset");
        let text = synth::plan(&preset, 0).expect("a plan").config().to_string();
        let config = Config::from_json(&text, std::path::Path::new("preset")).expect("a model");
        let weights: u64 = config_matrix_bytes(&config).values().sum();
        let session = |tokens| lily_kernels::SessionShape {
            batch: crate::functions::SESSIONS,
            tokens,
            capacity: 4096,
            run_ahead: GPU_STEPS_AHEAD,
            splits: splits(4096),
            ring: 64,
            logit_rows: crate::functions::SESSIONS,
            precision: lily_cuda::PRECISION,
        };
        let total = |tokens| MemoryPlan::new(&model_shape(&config), &session(tokens)).total();
        // A twentieth is not free, and 512 MiB are left to the driver.
        let free = (24 << 30) / 20 * 19 - (512 << 20);
        assert!(weights + total(lily_cuda::CHUNK) <= free);
        assert!(total(lily_cuda::CHUNK) > total(CHUNK));
    }
}
