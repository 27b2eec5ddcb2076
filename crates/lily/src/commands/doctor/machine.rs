//! What a machine has, by device.

use std::fmt;

use anyhow::Result;
use lily_cpu::Numerics;
use lily_cuda::CudaDevice;
use lily_kernels::conformance::Bar;
use lily_kernels::cpu::Simd;
#[cfg(target_os = "macos")]
use lily_metal::{
    MetalOptions,
    budget::{Budget, DeviceMemory},
    encoder::DecodeEncoding,
};
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
    /// The same GPU with decode plans encoded once, where that is an option.
    pub once: Option<Box<dyn Device>>,
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
        /// The cores that they were counted by.
        cores: String,
        /// Bytes that everything but the weights may take, where the system says.
        memory_limit: Option<u64>,
        /// Bytes read from memory by all threads together in a second, measured; none without memory to read.
        read_bandwidth: Option<f64>,
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
        /// Bytes read from memory in a second, measured.
        read_bandwidth: Option<f64>,
    },
    /// The GPU of a Mac.
    #[cfg(target_os = "macos")]
    Metal(Metal),
    /// The MSL test device.
    #[cfg(feature = "msl-test")]
    MslTest {
        /// Threads that run a launch.
        threads: usize,
        /// Where compiled kernels lie.
        kernels: std::path::PathBuf,
    },
}

/// A Mac with its GPU.
#[cfg(target_os = "macos")]
#[derive(Serialize)]
pub struct Metal {
    /// Metal's name of the GPU.
    name: String,
    /// Version of macOS, with its build.
    macos: String,
    /// Newest Apple family that the GPU belongs to; none in virtual machines, which show an older one.
    family: Option<String>,
    /// Whether it takes Metal 4.
    metal4: bool,
    /// Whether memory is kept resident as one set.
    residency_sets: bool,
    /// Form of matrix products, and why this one.
    products: String,
    /// Bytes of memory of the machine.
    memory: u64,
    /// Bytes of it that the system recommends for the GPU.
    working_set: u64,
    /// Bytes that weights and sessions may take.
    memory_limit: u64,
    /// Bytes of the largest buffer.
    largest_buffer: u64,
}

/// Opens a device and looks at it. `auto` is what a model of real size would get, if it fits.
///
/// # Errors
/// It is not there, or lacks something; the message says what.
pub fn open(choice: DeviceChoice) -> Result<Patient> {
    match choice {
        #[cfg(target_os = "macos")]
        DeviceChoice::Auto if device::best_metal().is_some() => open(DeviceChoice::Metal),
        DeviceChoice::Auto => device::nvidia_or(cuda, cpu),
        DeviceChoice::Cpu => cpu(),
        DeviceChoice::Cuda => cuda(device::cuda()?),
        #[cfg(not(target_os = "macos"))]
        DeviceChoice::Metal => anyhow::bail!(device::NO_MAC),
        #[cfg(target_os = "macos")]
        DeviceChoice::Metal => {
            let device = device::metal(MetalOptions::default())?;
            let (host, system) = (device.host(), device.host().system().clone());
            let machine = Machine::Metal(Metal {
                name: system.name,
                macos: system.version_text,
                family: system.generation.map(|family| family.to_string()),
                metal4: system.metal4,
                residency_sets: system.has_residency_sets,
                products: host.products().reason.to_string(),
                memory: system.memory_bytes,
                working_set: system.working_set_bytes,
                memory_limit: Budget::new(DeviceMemory {
                    machine: system.memory_bytes,
                    recommended: system.working_set_bytes,
                })
                .limit(),
                largest_buffer: system.buffer_bytes,
            });
            let encoding = DecodeEncoding::Once;
            let once = device::metal(MetalOptions { encoding, ..MetalOptions::default() })?;
            Ok(Patient {
                name: "metal",
                device: Box::new(device),
                once: Some(Box::new(once)),
                bar: Bar::Bf16,
                machine,
            })
        }
        #[cfg(feature = "msl-test")]
        DeviceChoice::MslTest => {
            let (device, threads) = device::msl_test(0);
            let machine = Machine::MslTest { threads, kernels: lily_msl_test::cache_folder() };
            Ok(Patient {
                name: "msl-test",
                device: Box::new(device),
                once: None,
                bar: Bar::Bf16,
                machine,
            })
        }
    }
}

fn cpu() -> Result<Patient> {
    let mut device = device::cpu(Numerics::Int8, 0)?;
    let threads = device.threads();
    let read_bandwidth = device.read_bandwidth()?;
    let machine = Machine::Cpu {
        instruction_set: Simd::from_environment()?.level().to_string(),
        threads,
        cores: device.cores(),
        memory_limit: lily_plan::host_memory(),
        read_bandwidth,
    };
    Ok(Patient { name: "cpu", device: Box::new(device), once: None, bar: Bar::Int8, machine })
}

fn cuda(mut device: CudaDevice) -> Result<Patient> {
    let read_bandwidth = device.read_bandwidth()?;
    let info = device.info();
    let version = |(major, minor): (i32, i32)| format!("{major}.{minor}");
    let machine = Machine::Cuda {
        name: info.name.clone(),
        compute_capability: format!("{}.{}", info.capability.0, info.capability.1),
        memory: info.memory_bytes,
        memory_limit: device.memory_limit()?,
        driver: version((info.driver_version / 1000, info.driver_version % 1000 / 10)),
        nvrtc: version(device.compiler().nvrtc_version()?),
        read_bandwidth,
    };
    Ok(Patient { name: "cuda", device: Box::new(device), once: None, bar: Bar::Bf16, machine })
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
        let mut line = |name: &str, value: &dyn fmt::Display| writeln!(f, "{name:21} {value}");
        let bandwidth = |rate: &Option<f64>| {
            rate.map_or("not measured".into(), |rate| format!("{:.1} GB/s", rate / 1e9))
        };
        match self {
            Self::Cpu { instruction_set, threads, cores, memory_limit, read_bandwidth } => {
                line("instruction set", instruction_set)?;
                line("threads", &format_args!("{threads} on {cores}"))?;
                let limit = memory_limit.map_or("the system does not say".into(), gb);
                line("memory limit", &limit)?;
                line("read bandwidth", &bandwidth(read_bandwidth))
            }
            Self::Cuda {
                name,
                compute_capability,
                memory,
                memory_limit,
                driver,
                nvrtc,
                read_bandwidth,
            } => {
                line("GPU", name)?;
                line("compute capability", compute_capability)?;
                line("memory", &gb(*memory))?;
                line("memory limit", &gb(*memory_limit))?;
                line("driver", driver)?;
                line("NVRTC", nvrtc)?;
                line("read bandwidth", &bandwidth(read_bandwidth))
            }
            #[cfg(target_os = "macos")]
            Self::Metal(metal) => {
                let yes = |has: bool| if has { "yes" } else { "no" };
                line("GPU", &metal.name)?;
                line("macOS", &metal.macos)?;
                line("Apple family", &metal.family.as_deref().unwrap_or("older than Apple7"))?;
                line("Metal 4", &yes(metal.metal4))?;
                line("residency sets", &yes(metal.residency_sets))?;
                line("matrix products", &metal.products)?;
                line("memory", &gb(metal.memory))?;
                line("recommended for GPU", &gb(metal.working_set))?;
                line("memory limit", &gb(metal.memory_limit))?;
                line("largest buffer", &gb(metal.largest_buffer))
            }
            #[cfg(feature = "msl-test")]
            Self::MslTest { threads, kernels } => {
                line("threads", threads)?;
                line("compiled kernels", &kernels.display())
            }
        }
    }
}
