//! The `Device` trait on an NVIDIA GPU.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use lily_kernels::gpu::stored::WeightFiles;
use lily_kernels::gpu::{Entry, MatrixFormat, Source, weight_bytes};
use lily_plan::{
    Binding, BufferId, Buffers, Device, DeviceError, Fetch, Fusions, KernelTime, MappedFile,
    MemoryBudget, Plan, PlanId, Precision, WeightWatch, Weights, check_plan, check_range,
    check_weights,
};

use crate::bandwidth;
use crate::compiler::{Architecture, Compiler};
use crate::contents::Contents;
use crate::driver::{DeviceInfo, Function, Gpu, Graph, KernelLaunch};
use crate::error::CudaError;
use crate::failure::LAUNCH_BY_LAUNCH;
use crate::fetch::Fetches;

/// Name in messages.
pub(crate) const NAME: &str = "cuda";

/// Device memory that stays free for the driver: contexts, modules, graphs.
const HEADROOM_BYTES: u64 = 512 << 20;

/// Element types of the CUDA device.
pub const PRECISION: Precision = Precision::BF16_CHUNKS;

/// Launches that the CUDA device merges. Measured on an H200: `prepare` gains 0.3 %, `topk` loses 1 %.
pub const FUSIONS: Fusions = Fusions { topk: false, prepare: true, short: false };

/// Largest prefill chunk unless one is asked for, in tokens: what the figures of `docs/performance.md` were
/// measured with. Larger chunks share each expert's weights among more tokens.
pub const CHUNK: usize = 2048;

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
pub(crate) struct Compiled {
    pub(crate) plan: Arc<Plan>,
    pub(crate) launches: Vec<KernelLaunch>,
    graph: Graph,
}

/// An NVIDIA GPU as a device.
pub struct CudaDevice {
    // Before the memory that they use.
    pub(crate) plans: Vec<Compiled>,
    functions: HashMap<Source, Function>,
    contents: Contents,
    buffers: Arc<Buffers>,
    /// Of the weights that come next.
    files: WeightFiles,
    watch: Option<WeightWatch>,
    compiler: Compiler,
    fetches: Fetches,
    /// The plan that was submitted last.
    pub(crate) last: Option<PlanId>,
    /// How a fault has taken the GPU away.
    pub(crate) lost: Option<String>,
    launch_by_launch: bool,
    pub(crate) gpu: Arc<Gpu>,
}

impl CudaDevice {
    /// Opens a GPU.
    pub fn new(options: CudaOptions) -> Result<Self, CudaError> {
        let gpu = Gpu::open(options.index)?;
        Ok(Self {
            plans: Vec::new(),
            functions: HashMap::new(),
            contents: Contents::default(),
            buffers: Arc::default(),
            files: WeightFiles::default(),
            watch: None,
            compiler: Compiler::new(options.nvrtc, options.cache),
            fetches: Fetches::new(&gpu)?,
            last: None,
            lost: None,
            launch_by_launch: std::env::var_os(LAUNCH_BY_LAUNCH).is_some(),
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

    /// What its kernels come from.
    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// What its kernels are compiled for.
    pub fn architecture(&self) -> Architecture {
        let (major, minor) = self.info().capability;
        Architecture::of(major, minor)
    }

    /// Whether the next kernel may be brought up while one ends: from compute capability 9.0 on. On an
    /// H200 decode gains 2 % by it; started any earlier, the next kernel's waiting blocks cost 11 %.
    fn overlaps(&self) -> bool {
        self.info().capability >= (9, 0)
    }

    pub(crate) fn plan(&self, plan: PlanId) -> Result<&Compiled, DeviceError> {
        self.plans.get(plan.0).ok_or_else(|| DeviceError::no_plan(plan, self.plans.len()))
    }

    /// The function that serves a launch, and its complete source.
    fn entry(&self, plan: &Plan, index: usize) -> Result<(Entry, Source), DeviceError> {
        let launch = &plan.launches()[index];
        let formats: Vec<Option<MatrixFormat>> =
            launch.bindings.iter().map(|b| self.contents.formats[b.buffer.index()]).collect();
        let (face, entry) = self.architecture().target().entry(launch, index, &formats)?;
        let source = Source::assemble(launch.kernel, &face, &entry);
        Ok((entry, source))
    }

    /// Compiles and loads the functions that are new, several at once.
    fn load_functions(&mut self, wanted: &[(&'static str, &Source, u32)]) -> Result<(), CudaError> {
        let mut new: Vec<(&str, &Source, u32)> = Vec::new();
        for &(kernel, source, shared) in wanted {
            if !self.functions.contains_key(source) && new.iter().all(|(_, s, _)| *s != source) {
                new.push((kernel, source, shared));
            }
        }
        let named: Vec<(&str, &Source)> = new.iter().map(|&(k, source, _)| (k, source)).collect();
        let images = self.compiler.compile_all(&named, &self.architecture(), &|| ())?;
        for ((_, source, shared), cubin) in new.into_iter().zip(images) {
            let function = self.gpu.load(&cubin.image, source.function, shared)?;
            self.functions.insert(source.clone(), function);
        }
        Ok(())
    }

    /// Loads what a plan needs, and records it.
    fn prepare(&mut self, plan: &Arc<Plan>) -> Result<Compiled, DeviceError> {
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
        let address = |b: &Binding| self.contents.memory[b.buffer.index()].address();
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
        Ok(Compiled { plan: plan.clone(), launches, graph })
    }

    fn range(
        &self,
        buffer: BufferId,
        offset: usize,
        bytes: usize,
        verb: &str,
    ) -> Result<(), DeviceError> {
        let size = self.contents.memory[buffer.index()].bytes() as u64;
        check_range(self.buffers.get(buffer), size, offset, bytes, verb)
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        NAME
    }

    fn precision(&self) -> Precision {
        PRECISION
    }

    fn fusions(&self) -> Fusions {
        FUSIONS
    }

    fn memory_budget(&self, weights: &Weights) -> Result<Option<MemoryBudget>, DeviceError> {
        let weights = weights.values().map(|weight| weight_bytes(weight) as u64).sum();
        Ok(Some(MemoryBudget { limit: self.memory_limit()?, weights }))
    }

    /// Weights are on the GPU: all that the host has left.
    fn host_memory(&self) -> Result<Option<u64>, DeviceError> {
        Ok(Some(lily_plan::host_memory().unwrap_or(u64::MAX)))
    }

    /// Nothing where the kernel is not in the cache and NVRTC is not there.
    fn read_bandwidth(&mut self) -> Result<Option<f64>, DeviceError> {
        let source = bandwidth::source();
        match self.load_functions(&[(bandwidth::KERNEL, &source, 0)]) {
            Err(CudaError::NoNvrtc { .. }) => return Ok(None),
            loaded => loaded?,
        }
        Ok(Some(bandwidth::read_bandwidth(&self.gpu, self.functions[&source].clone())?))
    }

    fn weight_files(&mut self, files: Vec<MappedFile>) {
        self.files = WeightFiles::open(files, |_| ());
    }

    fn watch_weights(&mut self, watch: WeightWatch) {
        self.watch = Some(watch);
    }

    fn allocate(&mut self, buffers: &Arc<Buffers>, weights: Weights) -> Result<(), DeviceError> {
        check_weights(buffers, &weights)?;
        self.make_sure()?;
        self.plans.clear();
        self.last = None;
        self.contents = Contents::default();
        self.buffers = buffers.clone();
        let (files, watch) = (std::mem::take(&mut self.files), self.watch.take());
        let contents = Contents::new(&self.gpu, buffers, &weights, &files, watch.as_ref());
        self.contents = self.guard(contents)?;
        Ok(())
    }

    fn compile(&mut self, plan: &Arc<Plan>) -> Result<PlanId, DeviceError> {
        check_plan(plan, &self.buffers)?;
        self.make_sure()?;
        let compiled = self.prepare(plan)?;
        self.plans.push(compiled);
        Ok(PlanId(self.plans.len() - 1))
    }

    fn submit(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        self.make_sure()?;
        self.last = Some(plan);
        if self.launch_by_launch {
            return self.run_in_steps(plan);
        }
        match self.gpu.run(&self.plan(plan)?.graph) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.explain_refusal(plan, error)),
        }
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        self.make_sure()?;
        let waited = self.gpu.wait();
        self.guard(waited)
    }

    fn run_launch(&mut self, plan: PlanId, launch: usize) -> Result<(), DeviceError> {
        // What was submitted before is not this launch's fault.
        self.wait()?;
        let compiled = self.plan(plan)?;
        let prepared = compiled
            .launches
            .get(launch)
            .ok_or_else(|| DeviceError::no_launch(launch, compiled.launches.len()))?;
        let ran = self.gpu.launch(prepared, false).and_then(|()| self.gpu.wait());
        let recorded = compiled.plan.clone();
        self.guard_launch(&recorded, launch, ran)
    }

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        self.make_sure()?;
        self.range(buffer, offset, out.len(), "read")?;
        let read = self.contents.memory[buffer.index()].read(offset, out);
        self.guard(read)
    }

    fn write(&mut self, buffer: BufferId, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        self.make_sure()?;
        self.range(buffer, offset, data.len(), "written")?;
        let written = self.contents.memory[buffer.index()].write(offset, data);
        self.guard(written)
    }

    fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }

    fn profile(&mut self, plan: PlanId, runs: usize) -> Result<Vec<KernelTime>, DeviceError> {
        let compiled = self.plan(plan)?;
        let overlap = self.overlaps();
        let mut times = Vec::new();
        for (kernel, own) in compiled.plan.by_kernel() {
            let launch = |&index: &usize| self.gpu.launch(&compiled.launches[index], overlap);
            let graph = self.gpu.record(|| own.iter().try_for_each(launch))?;
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
        self.make_sure()?;
        self.range(buffer, offset, bytes, "read")?;
        let fetch = Fetch::ready(bytes)?;
        let started = self.fetches.start(&self.contents.memory[buffer.index()], offset, fetch);
        self.guard(started)
    }

    fn fetched(&mut self, fetch: Fetch) -> Result<Fetch, DeviceError> {
        self.make_sure()?;
        let finished = self.fetches.finish(fetch);
        self.guard(finished)?.ok_or_else(|| {
            DeviceError::Usage("this fetch was never started, or is taken already".into())
        })
    }
}
