//! What a machine has, by device.

use std::fmt;

use anyhow::Result;
use lily_cpu::Numerics;
use lily_cuda::compiler::Compiler;
use lily_kernels::conformance::Bar;
use lily_kernels::cpu::Simd;
use lily_plan::Device;
use serde::Serialize;

use crate::args::DeviceChoice;
use crate::device;

/// A device to look at.
pub struct Patient {
    /// Name, as `--device` takes it.
    pub name: &'static str,
    /// The device.
    pub device: Box<dyn Device>,
    /// What its kernels are held to.
    pub bar: Bar,
    /// What it is and has.
    pub machine: Machine,
}

/// What a device is and has.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Machine {
    /// The processor.
    Cpu {
        /// Vector code in use.
        instruction_set: String,
        /// Threads that run launches.
        threads: usize,
        /// Bytes that everything but the weights may take, where the system says.
        memory_limit: Option<u64>,
        /// Bytes read from memory by all threads together in a second, measured.
        read_bandwidth: f64,
    },
    /// An NVIDIA GPU.
    Cuda {
        /// The driver's name of it.
        name: String,
        /// Compute capability.
        compute_capability: String,
        /// Bytes of memory.
        memory: u64,
        /// Bytes that weights and sessions may take now.
        memory_limit: u64,
        /// Version of CUDA that the driver offers.
        driver: String,
        /// Version of the compiler.
        nvrtc: String,
    },
    /// The MSL test device.
    #[cfg(feature = "msl-test")]
    MslTest {
        /// Threads that run a launch.
        threads: usize,
        /// Where compiled kernels lie.
        kernels: std::path::PathBuf,
    },
}

/// Opens a device and looks at it.
///
/// # Errors
/// It is not there, or lacks something; the message says what.
pub fn open(choice: DeviceChoice) -> Result<Patient> {
    match choice {
        DeviceChoice::Auto | DeviceChoice::Cpu => {
            let mut device = device::cpu(Numerics::Int8, 0);
            let threads = device.threads();
            let read_bandwidth = device.read_bandwidth()?.unwrap_or_default();
            let machine = Machine::Cpu {
                instruction_set: Simd::detect().level().to_string(),
                threads,
                memory_limit: lily_cpu::memory_limit(),
                read_bandwidth,
            };
            Ok(Patient { name: "cpu", device: Box::new(device), bar: Bar::Int8, machine })
        }
        DeviceChoice::Cuda => {
            let device = device::cuda()?;
            let info = device.info();
            let version = |(major, minor): (i32, i32)| format!("{major}.{minor}");
            let machine = Machine::Cuda {
                name: info.name.clone(),
                compute_capability: format!("{}.{}", info.capability.0, info.capability.1),
                memory: info.memory_bytes,
                memory_limit: device.memory_limit()?,
                driver: version((info.driver_version / 1000, info.driver_version % 1000 / 10)),
                nvrtc: version(Compiler::new(device::nvrtc(), None).nvrtc_version()?),
            };
            Ok(Patient { name: "cuda", device: Box::new(device), bar: Bar::Bf16, machine })
        }
        #[cfg(feature = "msl-test")]
        DeviceChoice::MslTest => {
            let (device, threads) = device::msl_test(0);
            let machine = Machine::MslTest { threads, kernels: lily_msl_test::cache_folder() };
            Ok(Patient { name: "msl-test", device: Box::new(device), bar: Bar::Bf16, machine })
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
        let mut line = |name: &str, value: &dyn fmt::Display| writeln!(f, "{name:21} {value}");
        match self {
            Self::Cpu { instruction_set, threads, memory_limit, read_bandwidth } => {
                line("instruction set", instruction_set)?;
                line("threads", threads)?;
                let limit = memory_limit.map_or("the system does not say".into(), gb);
                line("memory limit", &limit)?;
                line("read bandwidth", &format!("{:.1} GB/s", read_bandwidth / 1e9))
            }
            Self::Cuda { name, compute_capability, memory, memory_limit, driver, nvrtc } => {
                line("GPU", name)?;
                line("compute capability", compute_capability)?;
                line("memory", &gb(*memory))?;
                line("memory limit", &gb(*memory_limit))?;
                line("driver", driver)?;
                line("NVRTC", nvrtc)
            }
            #[cfg(feature = "msl-test")]
            Self::MslTest { threads, kernels } => {
                line("threads", threads)?;
                line("compiled kernels", &kernels.display())
            }
        }
    }
}
