//! The host for Apple GPUs: each of its methods is a call of Metal, or a few that belong together.
//!
//! What is called, with what and when, is decided in [`MetalDevice`](crate::MetalDevice) and in
//! [`encoder`](crate::encoder), which run on any machine.

mod compiler;
mod indirect;
mod memory;
mod queue;
mod residency;
mod system;

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use lily_kernels::gpu::Target;
use lily_plan::CompileTimes;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSObjectProtocol as _};
use objc2_metal::{MTLComputePipelineState, MTLDevice};

pub use system::System;

use crate::arena::Place;
use crate::budget::DeviceMemory;
use crate::chip::{Gpu as ChipGpu, GpuFamily, Policy, ProductsChoice, SelfTest, choose_products};
use crate::encoder::check::PipelineInfo;
use crate::encoder::{Command, Limits, Pace};
use crate::idle::KEEP;
use crate::machine::{Failure, Host, HostError, Wanted};
use compiler::Compiler;
use indirect::Indirect;
use memory::Memory;
use queue::{Known, Queue};
use residency::Residency;

/// A Metal device, which any thread may use.
type Gpu = Retained<ProtocolObject<dyn MTLDevice>>;

/// A compiled function.
type Pipeline = Retained<ProtocolObject<dyn MTLComputePipelineState>>;

/// How the host runs.
#[derive(Clone, Debug)]
pub struct AppleOptions {
    /// Folder of binary archives; `None` keeps none.
    pub cache: Option<PathBuf>,
    /// How long memory stays resident after the last work.
    pub keep_resident: Duration,
}

impl Default for AppleOptions {
    fn default() -> Self {
        Self { cache: default_cache(), keep_resident: KEEP }
    }
}

/// `~/Library/Caches/lily/metal`.
fn default_cache() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty())?;
    Some(PathBuf::from(home).join("Library/Caches/lily/metal"))
}

/// The GPU of this Mac.
pub struct AppleHost {
    // In this order: what is under way ends before its memory goes.
    queue: Queue,
    indirect: Indirect,
    residency: Option<Residency>,
    memory: Memory,
    pipelines: Vec<Pipeline>,
    compiler: Compiler,
    system: System,
    self_test: SelfTest,
    options: AppleOptions,
    gpu: Gpu,
}

impl AppleHost {
    /// Opens the default GPU.
    ///
    /// # Errors
    /// There is none, or the system is too old.
    pub fn open(options: AppleOptions) -> Result<Self, HostError> {
        let (gpu, system) = system::open()?;
        Ok(Self {
            queue: Queue::new(&gpu)?,
            indirect: Indirect::default(),
            residency: None,
            memory: Memory::default(),
            pipelines: Vec::new(),
            compiler: Compiler::new(&gpu, &system, options.cache.clone()),
            system,
            self_test: SelfTest::NotRun,
            options,
            gpu,
        })
    }

    /// What the system says of itself and of its GPU.
    pub fn system(&self) -> &System {
        &self.system
    }

    /// The form of matrix products, with the reason.
    pub fn products(&self) -> ProductsChoice {
        // A GPU of no generation that lily knows has no units for tensor operations.
        let family = self.system.generation.unwrap_or(GpuFamily::Apple7);
        choose_products(self.system.version, family, self.self_test)
    }

    /// What lily chooses for this GPU.
    pub fn policy(&self) -> Policy {
        Policy::new(&self.chip(), self.products().products)
    }

    /// The chip with the fewest cores that it has; Metal does not say how many there are.
    fn chip(&self) -> ChipGpu {
        let family = self.system.generation.unwrap_or(GpuFamily::Apple7);
        ChipGpu::of_device(&self.system.name, family, None)
    }
}

impl Host for AppleHost {
    fn compile_times(&self) -> Option<CompileTimes> {
        Some(self.compiler.times())
    }

    fn description(&self) -> String {
        self.system.to_string()
    }

    fn limits(&self) -> Limits {
        let most = Limits::default();
        let threads = self.gpu.maxThreadsPerThreadgroup().width;
        Limits {
            allocation_bytes: self.gpu.maxBufferLength() as u64,
            threads: most.threads.min(u32::try_from(threads).unwrap_or(u32::MAX)),
            threadgroup_bytes: self.gpu.maxThreadgroupMemoryLength() as u64,
            pace: Pace::of(&self.chip(), self.products().products),
            ..most
        }
    }

    fn target(&self) -> Target {
        Target { products: self.products().products, ..Target::APPLE }
    }

    fn memory(&self) -> Option<DeviceMemory> {
        let System { memory_bytes, working_set_bytes, .. } = self.system;
        Some(DeviceMemory { machine: memory_bytes, recommended: working_set_bytes })
    }

    fn wants_self_test(&self) -> bool {
        let wants = |family| ProductsChoice::wants_self_test(self.system.version, family);
        self.self_test == SelfTest::NotRun && self.system.generation.is_some_and(wants)
    }

    fn tested(&mut self, result: SelfTest) {
        self.self_test = result;
    }

    fn past_the_cache(&self, file: &File) {
        system::past_the_cache(file);
    }

    fn allocate(&mut self, sizes: &[u64]) -> Result<(), HostError> {
        self.queue = Queue::new(&self.gpu)?;
        self.indirect = Indirect::default();
        self.residency = None;
        self.memory = Memory::default();
        self.memory = Memory::new(&self.gpu, sizes)?;
        if self.system.has_residency_sets {
            let keep = self.options.keep_resident;
            // Without it encoders are told what they may touch: slower when idle, right all the same.
            self.residency = Residency::new(&self.gpu, &self.memory, keep).ok();
        }
        self.queue.attach(self.residency.as_ref());
        Ok(())
    }

    fn bytes(&mut self, place: Place) -> Result<&mut [u8], HostError> {
        self.memory.bytes(place)
    }

    fn compile(&mut self, wanted: &[Wanted<'_>]) -> Result<Vec<PipelineInfo>, HostError> {
        let compiled = self.compiler.compile(wanted)?;
        let infos = compiled.iter().map(|pipeline| PipelineInfo {
            max_threads: u32::try_from(pipeline.maxTotalThreadsPerThreadgroup()).unwrap_or(0),
            threadgroup_bytes: Some(pipeline.staticThreadgroupMemoryLength() as u64),
            simd_width: u32::try_from(pipeline.threadExecutionWidth()).unwrap_or(0),
            indirect: pipeline.supportIndirectCommandBuffers(),
        });
        let infos = infos.collect();
        self.pipelines.extend(compiled);
        Ok(infos)
    }

    fn execute(&mut self, command: &Command) -> Result<(), HostError> {
        if *command == Command::Commit
            && let Some(residency) = &self.residency
        {
            residency.used();
        }
        if let Command::NewIndirect { id, commands, buffers } = *command {
            return self.indirect.make(&self.gpu, id, commands, buffers);
        }
        let known = Known {
            pipelines: &self.pipelines,
            memory: &self.memory,
            indirect: &self.indirect,
            // Where there are no residency sets, an encoder is told what it may touch.
            loose: self.residency.is_none(),
        };
        match *command {
            Command::Encode { id, command, call } => {
                self.indirect.encode(id, command, call, &known)
            }
            _ => self.queue.execute(command, &known),
        }
    }

    fn reach(&mut self, serial: u64) -> Result<(), Failure> {
        self.queue.reach(serial)
    }

    fn last_seconds(&self) -> Option<f64> {
        self.queue.last_seconds()
    }

    fn rebuild(&mut self) -> Result<(), HostError> {
        self.queue = Queue::new(&self.gpu)?;
        self.queue.attach(self.residency.as_ref());
        Ok(())
    }
}

/// What an error says of itself.
fn message(error: &NSError) -> String {
    format!("{} ({} {})", error.localizedDescription(), error.domain(), error.code())
}

/// Whether an object has a method, by name; older systems lack some.
fn responds(object: &ProtocolObject<dyn MTLDevice>, selector: objc2::runtime::Sel) -> bool {
    object.respondsToSelector(selector)
}
