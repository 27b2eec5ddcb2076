//! The `Device` trait on an NVIDIA GPU.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use lily_kernels::gpu::{Entry, Family, MatrixFormat, Products, Source, Target, weight_bytes};
use lily_plan::{
    Binding, BufferId, BufferKind, Buffers, Device, DeviceError, Fetch, Fusions, KernelTime,
    MemoryBudget, Plan, PlanId, Precision, Weight, Weights, check_plan, check_range, check_weights,
};

use crate::compiler::{Architecture, Compiler};
use crate::driver::{DeviceInfo, DeviceMemory, Function, Gpu, Graph, KernelLaunch};
use crate::error::CudaError;
use crate::fetch::Fetches;
use crate::upload::Uploader;

/// Name in messages.
const NAME: &str = "cuda";

/// Device memory that stays free for the driver: contexts, modules, graphs.
const HEADROOM_BYTES: u64 = 512 << 20;

/// How the CUDA device runs.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Number of the GPU.
    pub index: usize,
    /// The NVRTC library; `None` looks for it.
    pub nvrtc: Option<PathBuf>,
    /// Folder of compiled kernels; `None` keeps none.
    pub cache: Option<PathBuf>,
}

/// A compiled plan.
struct Compiled {
    plan: Arc<Plan>,
    launches: Vec<KernelLaunch>,
    graph: Graph,
}

/// An NVIDIA GPU as a device.
pub struct CudaDevice {
    // Before the memory that they use.
    plans: Vec<Compiled>,
    functions: HashMap<Source, Function>,
    memory: Vec<DeviceMemory>,
    formats: Vec<Option<MatrixFormat>>,
    buffers: Arc<Buffers>,
    compiler: Compiler,
    fetches: Fetches,
    gpu: Arc<Gpu>,
}

impl CudaDevice {
    /// Opens a GPU.
    pub fn new(options: CudaOptions) -> Result<Self, CudaError> {
        let gpu = Gpu::open(options.index)?;
        Ok(Self {
            plans: Vec::new(),
            functions: HashMap::new(),
            memory: Vec::new(),
            formats: Vec::new(),
            buffers: Arc::default(),
            compiler: Compiler::new(options.nvrtc, options.cache),
            fetches: Fetches::new(&gpu)?,
            gpu,
        })
    }

    /// What the GPU is.
    pub fn info(&self) -> &DeviceInfo {
        self.gpu.info()
    }

    /// Bytes that weights and sessions may take now.
    pub fn memory_limit(&self) -> Result<u64, CudaError> {
        Ok(self.gpu.memory()?.0.saturating_sub(HEADROOM_BYTES))
    }

    fn architecture(&self) -> Architecture {
        let (major, minor) = self.info().capability;
        Architecture::of(major, minor)
    }

    fn target(&self) -> Target {
        let (major, minor) = self.info().capability;
        Target {
            family: Family::Nvidia { capability: 10 * major + minor },
            products: Products::SimdgroupMatrix,
        }
    }

    /// Whether the next kernel may be brought up while one ends: from compute capability 9.0 on. On an
    /// H200 decode gains 2 % by it; started any earlier, the next kernel's waiting blocks cost 11 %.
    fn overlaps(&self) -> bool {
        self.info().capability >= (9, 0)
    }

    fn plan(&self, plan: PlanId) -> Result<&Compiled, DeviceError> {
        self.plans.get(plan.0).ok_or_else(|| DeviceError::no_plan(plan, self.plans.len()))
    }

    /// The function that serves a launch, and its complete source.
    fn entry(&self, plan: &Plan, index: usize) -> Result<(Entry, Source), DeviceError> {
        let launch = &plan.launches()[index];
        let formats: Vec<Option<MatrixFormat>> =
            launch.bindings.iter().map(|b| self.formats[b.buffer.index()]).collect();
        let (face, entry) = self.target().entry(launch, index, &formats)?;
        let source = Source::assemble(launch.kernel, &face, &entry);
        Ok((entry, source))
    }

    /// Compiles and loads the functions that are new, several at once.
    fn load_functions(
        &mut self,
        wanted: &[(&'static str, &Source, u32)],
    ) -> Result<(), DeviceError> {
        let mut new: Vec<(&str, &Source, u32)> = Vec::new();
        for &(kernel, source, shared) in wanted {
            if !self.functions.contains_key(source) && new.iter().all(|(_, s, _)| *s != source) {
                new.push((kernel, source, shared));
            }
        }
        let (compiler, architecture) = (&self.compiler, self.architecture());
        let next = AtomicUsize::new(0);
        let workers = thread::available_parallelism().map_or(1, |n| n.get()).min(new.len());
        let images = thread::scope(|scope| {
            let work = || {
                let mut done = Vec::new();
                while let Some(&(kernel, source, shared)) =
                    new.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    done.push((source, shared, compiler.compile(kernel, source, &architecture)));
                }
                done
            };
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            let joined = threads.into_iter().map(|t| t.join().unwrap_or_else(|p| resume_unwind(p)));
            joined.flatten().collect::<Vec<_>>()
        });
        for (source, shared, cubin) in images {
            let function = self.gpu.load(&cubin?.image, source.function, shared)?;
            self.functions.insert(source.clone(), function);
        }
        Ok(())
    }

    fn range(
        &self,
        buffer: BufferId,
        offset: usize,
        bytes: usize,
        verb: &str,
    ) -> Result<(), DeviceError> {
        let size = self.memory[buffer.index()].bytes() as u64;
        check_range(self.buffers.get(buffer), size, offset, bytes, verb)
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        NAME
    }

    fn precision(&self) -> Precision {
        Precision::BF16
    }

    /// Measured on an H200: `prepare` gains 0.3 %, `topk` loses 1 %.
    fn fusions(&self) -> Fusions {
        Fusions { prepare: true, ..Fusions::default() }
    }

    fn memory_budget(&self, weights: &Weights) -> Result<Option<MemoryBudget>, DeviceError> {
        let weights = weights.values().map(|weight| weight_bytes(weight) as u64).sum();
        Ok(Some(MemoryBudget { limit: self.memory_limit()?, weights }))
    }

    fn allocate(
        &mut self,
        buffers: &Arc<Buffers>,
        mut weights: Weights,
    ) -> Result<(), DeviceError> {
        check_weights(buffers, &weights)?;
        self.plans.clear();
        self.memory.clear();
        self.formats.clear();
        self.buffers = buffers.clone();
        let largest = weights.values().map(weight_bytes).max().unwrap_or(0);
        let mut uploader = Uploader::new(&self.gpu, largest)?;
        for (_, buffer) in buffers.iter() {
            let weight = match buffer.kind {
                BufferKind::Weight => weights.remove(&buffer.name),
                _ => None,
            };
            let (memory, format) = match weight {
                Some(Weight::Matrix(matrix)) => {
                    let format = MatrixFormat::of(&matrix);
                    let mut memory = self.gpu.allocate(format.layout(&matrix).bytes())?;
                    uploader.matrix(&matrix, format, &mut memory)?;
                    (memory, Some(format))
                }
                Some(Weight::Vector(values)) => {
                    let mut memory = self.gpu.allocate(4 * values.len())?;
                    memory.write(0, bytemuck::cast_slice(&values))?;
                    (memory, None)
                }
                None => (self.gpu.allocate(buffer.bytes() as usize)?, None),
            };
            self.memory.push(memory);
            self.formats.push(format);
        }
        self.gpu.wait()?;
        Ok(())
    }

    fn compile(&mut self, plan: &Arc<Plan>) -> Result<PlanId, DeviceError> {
        check_plan(plan, &self.buffers)?;
        let entries: Vec<(Entry, Source)> = (0..plan.launches().len())
            .map(|index| self.entry(plan, index))
            .collect::<Result<_, _>>()?;
        let wanted: Vec<(&str, &Source, u32)> = plan
            .launches()
            .iter()
            .zip(&entries)
            .map(|(l, (entry, source))| (l.kernel, source, entry.shared))
            .collect();
        self.load_functions(&wanted)?;
        let address = |b: &Binding| self.memory[b.buffer.index()].address();
        let launches: Vec<KernelLaunch> = plan
            .launches()
            .iter()
            .zip(&entries)
            .map(|(launch, (entry, source))| KernelLaunch {
                function: self.functions[source].clone(),
                grid: entry.grid,
                threads: entry.threads,
                shared: entry.shared,
                args: launch.args.clone(),
                pointers: launch.bindings.iter().map(address).collect(),
            })
            .collect();
        let overlap = self.overlaps();
        let graph = self
            .gpu
            .record(|| launches.iter().try_for_each(|launch| self.gpu.launch(launch, overlap)))?;
        self.plans.push(Compiled { plan: plan.clone(), launches, graph });
        Ok(PlanId(self.plans.len() - 1))
    }

    fn submit(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        Ok(self.gpu.run(&self.plan(plan)?.graph)?)
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        Ok(self.gpu.wait()?)
    }

    fn run_launch(&mut self, plan: PlanId, launch: usize) -> Result<(), DeviceError> {
        let compiled = self.plan(plan)?;
        let prepared = compiled
            .launches
            .get(launch)
            .ok_or_else(|| DeviceError::no_launch(launch, compiled.launches.len()))?;
        let failed = |error: CudaError| DeviceError::Launch {
            device: NAME.into(),
            kernel: compiled.plan.launches()[launch].label(),
            launch,
            reason: error.to_string(),
        };
        self.gpu.launch(prepared, false).map_err(failed)?;
        self.gpu.wait().map_err(failed)
    }

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        self.range(buffer, offset, out.len(), "read")?;
        Ok(self.memory[buffer.index()].read(offset, out)?)
    }

    fn write(&mut self, buffer: BufferId, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        self.range(buffer, offset, data.len(), "written")?;
        Ok(self.memory[buffer.index()].write(offset, data)?)
    }

    fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }

    fn profile(&mut self, plan: PlanId, runs: usize) -> Result<Vec<KernelTime>, DeviceError> {
        let compiled = self.plan(plan)?;
        let overlap = self.overlaps();
        let mut kernels: Vec<&'static str> = Vec::new();
        for launch in compiled.plan.launches() {
            if !kernels.contains(&launch.kernel) {
                kernels.push(launch.kernel);
            }
        }
        let mut times = Vec::new();
        for kernel in kernels {
            let own: Vec<&KernelLaunch> = compiled
                .plan
                .launches()
                .iter()
                .zip(&compiled.launches)
                .filter_map(|(launch, prepared)| (launch.kernel == kernel).then_some(prepared))
                .collect();
            let graph = self
                .gpu
                .record(|| own.iter().try_for_each(|launch| self.gpu.launch(launch, overlap)))?;
            self.gpu.run(&graph)?;
            let start = self.gpu.mark()?;
            for _ in 0..runs.max(1) {
                self.gpu.run(&graph)?;
            }
            let seconds = f64::from(self.gpu.mark()?.since(&start)?) / 1e3 / runs.max(1) as f64;
            times.push(KernelTime { kernel, launches: own.len(), seconds });
        }
        Ok(times)
    }

    fn fetch(
        &mut self,
        buffer: BufferId,
        offset: usize,
        bytes: usize,
    ) -> Result<Fetch, DeviceError> {
        self.range(buffer, offset, bytes, "read")?;
        self.fetches.start(&self.memory[buffer.index()], offset, bytes)
    }

    fn fetched(&mut self, fetch: Fetch) -> Result<Fetch, DeviceError> {
        self.fetches.finish(fetch)
    }
}
