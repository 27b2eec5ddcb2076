//! Opens the device that runs a model.

use anyhow::Result;
use lily_cpu::{CpuDevice, CpuOptions, Load, Numerics, Simd};
use lily_cuda::compiler::Compiler;
use lily_cuda::{CudaDevice, CudaOptions};
#[cfg(target_os = "macos")]
use lily_metal::{
    Host as _, MetalDevice, MetalOptions,
    encoder::{DecodeEncoding, DecodeSubmission},
    host::{AppleHost, AppleOptions},
};
#[cfg(feature = "msl-test")]
use lily_msl_test::{MslOptions, MslTestDevice};
use lily_plan::Device;

#[cfg(target_os = "macos")]
use crate::args::MetalArgs;
use crate::args::{DeviceChoice, LoadChoice, ModelArgs};

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

/// Largest prefill chunk of devices that have no reason for another one, in tokens.
const CHUNK: usize = 512;

/// Opens the device that the command line asks for.
///
/// # Errors
/// It is not there, or lacks something; the message says what.
pub fn open(args: &ModelArgs) -> Result<Opened> {
    match args.device {
        DeviceChoice::Auto => open_best(args),
        DeviceChoice::Cpu => open_cpu(args),
        DeviceChoice::Cuda => open_cuda(),
        DeviceChoice::Metal => open_metal(args),
        #[cfg(feature = "msl-test")]
        DeviceChoice::MslTest => Ok(open_msl_test(args)),
    }
}

/// The GPU of an Apple silicon Mac, unless an option asks for what only the processor has; otherwise the processor.
fn open_best(args: &ModelArgs) -> Result<Opened> {
    #[cfg(target_os = "macos")]
    if !args.exact
        && args.threads == 0
        && args.load == LoadChoice::Map
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

fn open_cuda() -> Result<Opened> {
    let device = cuda()?;
    let info = device.info();
    let (major, minor) = info.capability;
    let description = format!(
        "{}, compute capability {major}.{minor}, {} GB",
        info.name,
        info.memory_bytes / 1_000_000_000
    );
    Ok(Opened {
        // The host reads a token while the next step runs.
        steps_ahead: 1,
        chunk: CHUNK,
        description,
        device: Box::new(device),
    })
}

/// The first NVIDIA GPU.
///
/// # Errors
/// There is none, or the driver is missing.
pub fn cuda() -> Result<CudaDevice> {
    let cache = Compiler::default_cache();
    Ok(CudaDevice::new(CudaOptions { index: 0, nvrtc: nvrtc(), cache })?)
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
        // The host reads a token while the next step runs.
        steps_ahead: 1,
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
