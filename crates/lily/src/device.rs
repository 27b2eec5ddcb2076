//! Opens the device that runs a model.

use anyhow::Result;
use lily_cpu::{CpuDevice, CpuOptions, Numerics};
use lily_cuda::compiler::Compiler;
use lily_cuda::{CudaDevice, CudaOptions};
use lily_plan::Device;

use crate::args::{DeviceChoice, ModelArgs};

/// An opened device with what the engine should know about it.
pub struct Opened {
    /// The device.
    pub device: Box<dyn Device>,
    /// Bytes that everything but the weights may take, as far as the system says.
    pub memory_limit: Option<u64>,
    /// Steps to submit before the first of them is read.
    pub steps_ahead: usize,
    /// What it is, for people.
    pub description: String,
}

/// Opens the device that the command line asks for.
///
/// # Errors
/// It is not there, or lacks something; the message says what.
pub fn open(args: &ModelArgs) -> Result<Opened> {
    match args.device {
        DeviceChoice::Auto | DeviceChoice::Cpu => Ok(cpu(args)),
        DeviceChoice::Cuda => cuda(),
    }
}

fn cpu(args: &ModelArgs) -> Opened {
    let numerics = if args.exact { Numerics::Exact } else { Numerics::Int8 };
    let device =
        CpuDevice::new(CpuOptions { numerics, threads: args.threads, ..CpuOptions::default() });
    let description = format!("cpu, {} threads", device.threads());
    Opened {
        device: Box::new(device),
        memory_limit: lily_cpu::memory_limit(),
        steps_ahead: 0,
        description,
    }
}

fn cuda() -> Result<Opened> {
    let device = CudaDevice::new(CudaOptions {
        index: 0,
        nvrtc: std::env::var_os("LILY_NVRTC").map(Into::into),
        cache: Compiler::default_cache(),
    })?;
    let info = device.info();
    let (major, minor) = info.capability;
    let description = format!(
        "{}, compute capability {major}.{minor}, {} GB",
        info.name,
        info.memory_bytes / 1_000_000_000
    );
    Ok(Opened {
        // Weights and sessions share the GPU's memory.
        memory_limit: None,
        // The host reads a token while the next step runs.
        steps_ahead: 1,
        description,
        device: Box::new(device),
    })
}
