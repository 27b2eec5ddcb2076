//! The `Device` trait on the CPU: plans run where they are submitted, stage by stage.

use std::sync::Arc;
use std::time::Instant;

use lily_kernels::cpu::{CpuFace, CpuLaunch, Numerics, Operand, Simd, next_stamp};
use lily_kernels::gpu::stored::WeightFiles;
use lily_kernels::table;
use lily_plan::{
    Binding, BufferId, BufferKind, Buffers, Device, DeviceError, Element, KernelTime, MappedFile,
    MemoryBudget, Plan, PlanId, Precision, Weight, WeightMatrix, WeightWatch, Weights, check_plan,
    check_weights,
};

use crate::arena::Block;
use crate::bandwidth;
use crate::cores::Cores;
use crate::load::{self, Load, Prefetch};
use crate::pool::{Cost, Pool, Shuffle};

/// How the CPU device runs.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Numbers of the matrix products; `Exact` also keeps the KV cache in f32.
    pub numerics: Numerics,
    /// Threads, the caller's counted; 0 takes one for each fast physical core, and no more than a
    /// container's quota is worth.
    pub threads: usize,
    /// Where the weights are.
    pub load: Load,
    /// The instruction set of the kernels.
    pub simd: Simd,
    /// For tests: the tiles of a launch, and the launches of a stage, run in a random order drawn
    /// from this seed. The results are the same bits.
    pub shuffle: Option<u64>,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self {
            numerics: Numerics::Int8,
            threads: 0,
            load: Load::Map,
            simd: Simd::detect(),
            shuffle: None,
        }
    }
}

/// A buffer's memory.
enum Storage {
    Block(Block),
    /// Behind a pointer, so that it stays where it is.
    Matrix(Arc<WeightMatrix>),
    /// A small weight, widened: read like an f32 buffer.
    Vector(Block),
}

/// A launch with its kernel and its operands resolved.
struct Prepared {
    face: CpuFace,
    /// Point into the device's storage, which stays where it is until the plans are dropped.
    operands: Vec<Operand<'static>>,
    cost: Cost,
}

/// A compiled plan.
struct Compiled {
    plan: Arc<Plan>,
    launches: Vec<Prepared>,
}

/// The CPU as a device.
pub struct CpuDevice {
    options: CpuOptions,
    simd: Simd,
    pool: Pool,
    cores: Cores,
    /// Files of the next weights, and who hears how they are read.
    files: Vec<MappedFile>,
    watch: Option<WeightWatch>,
    prefetch: Option<Prefetch>,
    buffers: Arc<Buffers>,
    // Before `storage`: its operands point there.
    plans: Vec<Compiled>,
    storage: Vec<Storage>,
}

impl CpuDevice {
    /// A device without buffers; its threads start here.
    pub fn new(options: CpuOptions) -> Self {
        let cores = Cores::here();
        Self {
            options,
            simd: options.simd,
            pool: Pool::new(&cores, options.threads, options.shuffle.map(Shuffle::new)),
            cores,
            files: Vec::new(),
            watch: None,
            prefetch: None,
            buffers: Arc::default(),
            plans: Vec::new(),
            storage: Vec::new(),
        }
    }

    /// Threads that run launches, the caller's counted.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Whether some threads have to share a core, or exceed a container's quota: that slows all of them down.
    pub fn is_crowded(&self) -> bool {
        self.threads() > self.cores.most_threads()
    }

    /// The cores that the threads were counted by, for people.
    pub fn cores(&self) -> String {
        self.cores.describe()
    }

    /// The weights as they are used: in place, or copied.
    fn load(&mut self, weights: Weights) -> Result<Weights, DeviceError> {
        let files = std::mem::take(&mut self.files);
        let watch = self.watch.take().unwrap_or_else(|| Box::new(|_, _| ()));
        match self.options.load {
            Load::Map => {
                let bytes = load::copied_bytes(&weights);
                // More than fits would only drive out what was brought in before.
                let fits = lily_plan::host_memory().is_some_and(|limit| bytes <= limit);
                if fits && !files.is_empty() {
                    self.prefetch = Prefetch::start(&weights);
                }
                Ok(weights)
            }
            Load::Read => {
                load::copy(weights, &WeightFiles::open(files, |_| ()), self.threads(), &*watch)
            }
        }
    }

    fn plan(&self, plan: PlanId) -> Result<&Compiled, DeviceError> {
        self.plans.get(plan.0).ok_or_else(|| DeviceError::no_plan(plan, self.plans.len()))
    }

    fn run(&mut self, plan: PlanId, index: usize) -> Result<(), DeviceError> {
        let Compiled { plan, launches } = &mut self.plans[plan.0];
        let launch = &plan.launches()[index];
        let Prepared { face, operands, cost } = &mut launches[index];
        let view = CpuLaunch {
            args: &launch.args,
            operands,
            numerics: self.options.numerics,
            simd: self.simd,
            stamp: next_stamp(),
        };
        self.pool.run(*face, &view, cost).map_err(|reason| DeviceError::Launch {
            device: "cpu".into(),
            kernel: launch.label(),
            launch: index,
            reason,
        })
    }

    /// The launches in a random order within each stage.
    fn run_shuffled(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        for mut stage in self.plans[plan.0].plan.by_stage() {
            if let Some(shuffle) = self.pool.shuffle() {
                shuffle.shuffle(&mut stage);
            }
            stage.into_iter().try_for_each(|index| self.run(plan, index))?;
        }
        Ok(())
    }
}

/// # Safety
/// The storage outlives `'a`, does not move, and is touched only through shared slices while a
/// launch runs.
unsafe fn operand<'a>(storage: &Storage) -> Operand<'a> {
    match storage {
        // SAFETY: the caller's promise.
        Storage::Block(block) | Storage::Vector(block) => unsafe { block.operand() },
        Storage::Matrix(matrix) => {
            // SAFETY: the caller's promise; the matrix is never written.
            Operand::Matrix(unsafe { &*Arc::as_ptr(matrix) })
        }
    }
}

impl Device for CpuDevice {
    fn name(&self) -> &str {
        "cpu"
    }

    /// Mapped weights are not counted: the system can give back the page cache.
    fn memory_budget(&self, weights: &Weights) -> Result<Option<MemoryBudget>, DeviceError> {
        let Some(limit) = lily_plan::host_memory() else { return Ok(None) };
        let weights = match self.options.load {
            Load::Map => 0,
            Load::Read => load::copied_bytes(weights),
        };
        if weights > limit {
            return Err(DeviceError::Memory {
                device: "cpu".into(),
                bytes: weights,
                reason: format!(
                    "the weights are to be read into memory, of which {limit} bytes are left; free \
                     memory, or use --load map, which leaves them in the page cache"
                ),
            });
        }
        Ok(Some(MemoryBudget { limit, weights }))
    }

    fn weight_files(&mut self, files: Vec<MappedFile>) {
        self.files = files;
    }

    fn watch_weights(&mut self, watch: WeightWatch) {
        self.watch = Some(watch);
    }

    fn read_bandwidth(&mut self) -> Result<Option<f64>, DeviceError> {
        Ok(bandwidth::read_bandwidth(self.threads()))
    }

    fn precision(&self) -> Precision {
        match self.options.numerics {
            Numerics::Exact => Precision::EXACT,
            Numerics::Int8 => crate::DEFAULT_PRECISION,
        }
    }

    fn allocate(&mut self, buffers: &Arc<Buffers>, weights: Weights) -> Result<(), DeviceError> {
        check_weights(buffers, &weights)?;
        self.plans.clear();
        self.storage.clear();
        self.prefetch = None;
        let mut weights = self.load(weights)?;
        self.buffers = buffers.clone();
        for (_, buffer) in buffers.iter() {
            let weight = match buffer.kind {
                BufferKind::Weight => weights.remove(&buffer.name),
                _ => None,
            };
            self.storage.push(match weight {
                Some(Weight::Vector(values)) => {
                    let mut block = Block::new(Element::F32, 4 * values.len() as u64)?;
                    block.bytes_mut().copy_from_slice(bytemuck::cast_slice(&values));
                    Storage::Vector(block)
                }
                Some(Weight::Matrix(matrix)) => Storage::Matrix(Arc::new(matrix)),
                None => Storage::Block(Block::new(buffer.element, buffer.bytes())?),
            });
        }
        Ok(())
    }

    fn compile(&mut self, plan: &Arc<Plan>) -> Result<PlanId, DeviceError> {
        check_plan(plan, &self.buffers)?;
        let mut launches = Vec::new();
        for (index, launch) in plan.launches().iter().enumerate() {
            let kernel = table::find(launch.kernel).ok_or_else(|| DeviceError::MissingKernel {
                device: "cpu".into(),
                kernel: launch.kernel.into(),
                launch: index,
            })?;
            let storage = |b: &Binding| &self.storage[b.buffer.index()];
            // SAFETY: blocks and matrices lie behind pointers of the storage, which is dropped after
            // the plans, here and in `allocate`; only launches and `&mut self` methods touch blocks.
            let resolve = |b| unsafe { operand(storage(b)) };
            let operands = launch.bindings.iter().map(resolve).collect();
            launches.push(Prepared { face: kernel.cpu, operands, cost: Cost::default() });
        }
        self.plans.push(Compiled { plan: plan.clone(), launches });
        Ok(PlanId(self.plans.len() - 1))
    }

    fn submit(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        let launches = self.plan(plan)?.launches.len();
        if self.options.shuffle.is_some() {
            return self.run_shuffled(plan);
        }
        (0..launches).try_for_each(|index| self.run(plan, index))
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn run_launch(&mut self, plan: PlanId, launch: usize) -> Result<(), DeviceError> {
        let launches = self.plan(plan)?.launches.len();
        if launch >= launches {
            return Err(DeviceError::no_launch(launch, launches));
        }
        self.run(plan, launch)
    }

    fn profile(&mut self, plan: PlanId, runs: usize) -> Result<Vec<KernelTime>, DeviceError> {
        let mut times = Vec::new();
        for (kernel, own) in self.plan(plan)?.plan.by_kernel() {
            // A run that is not counted brings the weights into memory.
            own.iter().try_for_each(|&launch| self.run(plan, launch))?;
            let start = Instant::now();
            for _ in 0..runs.max(1) {
                own.iter().try_for_each(|&launch| self.run(plan, launch))?;
            }
            let seconds = start.elapsed().as_secs_f64() / runs.max(1) as f64;
            times.push(KernelTime { kernel, launches: own.len(), seconds });
        }
        Ok(times)
    }

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        let name = &self.buffers.get(buffer).name;
        let outside = || DeviceError::Usage(format!("read outside of {name}"));
        let Storage::Block(block) = &self.storage[buffer.index()] else {
            return Err(DeviceError::Usage(format!(
                "{name} is a weight, weights are not read back"
            )));
        };
        out.copy_from_slice(block.bytes().get(offset..offset + out.len()).ok_or_else(outside)?);
        Ok(())
    }

    fn write(&mut self, buffer: BufferId, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        let name = &self.buffers.get(buffer).name;
        let outside = || DeviceError::Usage(format!("write outside of {name}"));
        let Storage::Block(block) = &mut self.storage[buffer.index()] else {
            return Err(DeviceError::Usage(format!("{name} is a weight, weights are not written")));
        };
        let to = block.bytes_mut().get_mut(offset..offset + data.len()).ok_or_else(outside)?;
        to.copy_from_slice(data);
        Ok(())
    }

    fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }
}
