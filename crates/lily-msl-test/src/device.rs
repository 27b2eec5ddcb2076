//! The `Device` trait on the MSL test device.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lily_kernels::gpu::{MatrixFormat, Products, Source, Target};
use lily_plan::{
    Buffer, BufferId, BufferKind, Buffers, Device, DeviceError, Launch, Plan, PlanId, Precision,
    Weight, Weights, check_plan, check_weights,
};

use crate::compiler::{Build, CompileError, compile};
use crate::ffi::{Geometry, Kernel, Order};
use crate::memory::Block;

/// Name in messages.
const NAME: &str = "msl-test";

/// Compilers that run at once.
const COMPILERS: usize = 2;

/// How the device runs.
#[derive(Clone, Copy, Debug)]
pub struct MslOptions {
    /// Every access is checked.
    pub checked: bool,
    /// The last thread and the last threadgroup run first.
    pub reverse: bool,
    /// Threads of a launch; a checked launch has one.
    pub workers: usize,
    /// The launches of a stage run in a random order drawn from this seed.
    pub shuffle: Option<u64>,
    /// Form of matrix products.
    pub products: Products,
}

impl Default for MslOptions {
    fn default() -> Self {
        let products = Target::TEST.products;
        Self { checked: false, reverse: false, workers: 1, shuffle: None, products }
    }
}

/// A buffer's memory.
struct Storage {
    block: Block,
    /// Of a weight matrix.
    format: Option<MatrixFormat>,
}

/// A launch that is ready to run.
struct Prepared {
    kernel: Arc<Kernel>,
    geometry: Geometry,
    /// Where its argument struct lies.
    args: usize,
}

/// A compiled plan.
struct Compiled {
    plan: Arc<Plan>,
    launches: Vec<Prepared>,
    /// Argument structs of all launches.
    args: Block,
}

/// Alignment of argument structs.
const ARGS_ALIGN: usize = 16;

/// Metal texts on a CPU.
pub struct MslTestDevice {
    options: MslOptions,
    buffers: Arc<Buffers>,
    storage: Vec<Storage>,
    plans: Vec<Compiled>,
    random: u64,
}

impl MslTestDevice {
    /// A device without buffers.
    pub fn new(options: MslOptions) -> Self {
        Self {
            options,
            buffers: Arc::default(),
            storage: Vec::new(),
            plans: Vec::new(),
            random: options.shuffle.unwrap_or_default(),
        }
    }

    fn build(&self) -> Build {
        if self.options.checked { Build::Checked } else { Build::Fast }
    }

    /// The entry of a launch and its complete source.
    fn source(&self, plan: &Plan, index: usize) -> Result<(Source, Geometry), DeviceError> {
        let launch = &plan.launches()[index];
        let formats: Vec<_> =
            launch.bindings.iter().map(|b| self.storage[b.buffer.index()].format).collect();
        let target = Target { products: self.options.products, ..Target::TEST };
        let (face, entry) = target.entry(launch, index, &formats)?;
        let geometry = Geometry { grid: entry.grid, threads: entry.threads };
        Ok((Source::assemble(launch.kernel, &face, &entry), geometry))
    }

    /// Checks that a kernel takes what a launch binds.
    fn check(launch: &Launch, index: usize, kernel: &Kernel) -> Result<(), DeviceError> {
        let refuse = |reason: String| Err(unsupported(launch.kernel, index, reason));
        let (found, need) = (kernel.buffers().len(), launch.bindings.len() + 1);
        if found != need {
            return refuse(format!("its text takes {found} buffers, the launch has {need}"));
        }
        for (param, binding) in kernel.buffers()[1..].iter().zip(&launch.bindings) {
            if !param.is_const && binding.write.is_none() {
                return refuse(format!(
                    "its text may write `{}`, which the launch reads only; write `const device`",
                    param.name
                ));
            }
            let same = |other: &&lily_plan::Binding| other.buffer == binding.buffer;
            if binding.write.is_some() && launch.bindings.iter().filter(same).count() > 1 {
                return refuse(format!("buffer `{}` is bound twice and written", binding.role));
            }
        }
        Ok(())
    }

    fn plan(&self, plan: PlanId) -> Result<&Compiled, DeviceError> {
        self.plans.get(plan.0).ok_or_else(|| DeviceError::no_plan(plan, self.plans.len()))
    }

    fn run(&self, compiled: &Compiled, index: usize) -> Result<(), DeviceError> {
        let launch = &compiled.plan.launches()[index];
        let prepared = &compiled.launches[index];
        let args = compiled.args.part(prepared.args, launch.args.len()).ok_or_else(|| {
            DeviceError::Usage(format!("launch {index} has no arguments, compile its plan again"))
        })?;
        let bindings: Vec<_> = std::iter::once(args)
            .chain(launch.bindings.iter().map(|b| self.storage[b.buffer.index()].block.binding()))
            .collect();
        let order = if self.options.reverse { Order::Reverse } else { Order::Forward };
        let workers = self.options.workers;
        let result = prepared.kernel.run(prepared.geometry, &bindings, order, workers);
        result.map_err(|failure| DeviceError::Launch {
            device: NAME.into(),
            kernel: launch.label(),
            launch: index,
            reason: failure.to_string(),
        })
    }

    /// The launches of a plan, in the order in which they run.
    fn order(&mut self, plan: PlanId) -> Result<Vec<usize>, DeviceError> {
        let compiled = self.plan(plan)?;
        if self.options.shuffle.is_none() {
            return Ok((0..compiled.launches.len()).collect());
        }
        let mut stages = compiled.plan.by_stage();
        for stage in &mut stages {
            for last in (1..stage.len()).rev() {
                self.random = next_random(self.random);
                stage.swap(last, (self.random >> 33) as usize % (last + 1));
            }
        }
        Ok(stages.concat())
    }
}

/// A step of a linear congruential generator (Knuth, MMIX).
fn next_random(state: u64) -> u64 {
    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

fn unsupported(kernel: &str, launch: usize, reason: impl ToString) -> DeviceError {
    let reason = reason.to_string();
    DeviceError::Unsupported { device: NAME.into(), kernel: kernel.into(), launch, reason }
}

fn unavailable(error: &CompileError) -> DeviceError {
    DeviceError::Unavailable { device: NAME.into(), reason: error.to_string() }
}

fn allocate(bytes: usize) -> Result<Block, DeviceError> {
    let block = Block::new(bytes).map_err(|e| unavailable(&e))?;
    block.ok_or_else(|| DeviceError::Memory {
        device: NAME.into(),
        bytes: bytes as u64,
        reason: "there is no memory left, or no address: a process has 1536 buffers".into(),
    })
}

fn filled(content: &[u8]) -> Result<Block, DeviceError> {
    let mut block = allocate(content.len())?;
    let _inside = block.write(0, content);
    Ok(block)
}

/// Compiles sources, each once, a few at a time; the results are in their order.
fn compile_all(
    sources: &[Source],
    build: Build,
) -> HashMap<&Source, Result<Arc<Kernel>, CompileError>> {
    let mut distinct: Vec<&Source> = Vec::new();
    for source in sources {
        if !distinct.contains(&source) {
            distinct.push(source);
        }
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new(HashMap::new());
    let work = || {
        while let Some(source) = distinct.get(next.fetch_add(1, Ordering::Relaxed)) {
            let kernel = compile(source, build);
            done.lock().unwrap_or_else(PoisonError::into_inner).insert(*source, kernel);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..COMPILERS.min(distinct.len()) {
            scope.spawn(work);
        }
        work();
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Device for MslTestDevice {
    fn name(&self) -> &str {
        NAME
    }

    fn precision(&self) -> Precision {
        Precision::BF16
    }

    fn allocate(
        &mut self,
        buffers: &Arc<Buffers>,
        mut weights: Weights,
    ) -> Result<(), DeviceError> {
        check_weights(buffers, &weights)?;
        self.plans.clear();
        self.storage.clear();
        self.buffers = buffers.clone();
        for (_, buffer) in buffers.iter() {
            let weight = match buffer.kind {
                BufferKind::Weight => weights.remove(&buffer.name),
                _ => None,
            };
            let (content, format) = match weight {
                Some(Weight::Matrix(matrix)) => {
                    let format = MatrixFormat::of(&matrix);
                    (Some(format.pack_all(&matrix)), Some(format))
                }
                Some(Weight::Vector(v)) => (Some(bytemuck::cast_slice(&v).to_vec()), None),
                None => (None, None),
            };
            let block = match content {
                Some(content) => filled(&content)?,
                None => allocate(buffer.bytes() as usize)?,
            };
            self.storage.push(Storage { block, format });
        }
        Ok(())
    }

    fn compile(&mut self, plan: &Arc<Plan>) -> Result<PlanId, DeviceError> {
        check_plan(plan, &self.buffers)?;
        let indices = 0..plan.launches().len();
        let entries: Vec<_> =
            indices.map(|index| self.source(plan, index)).collect::<Result<_, _>>()?;
        let (sources, geometries): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
        let kernels = compile_all(&sources, self.build());
        let (mut launches, mut args) = (Vec::new(), Vec::new());
        for (index, (source, geometry)) in sources.iter().zip(geometries).enumerate() {
            let launch = &plan.launches()[index];
            let kernel = match &kernels[source] {
                Ok(kernel) => kernel.clone(),
                Err(e @ (CompileError::Translate(_) | CompileError::Text(_))) => {
                    return Err(unsupported(launch.kernel, index, e));
                }
                Err(e) => return Err(unavailable(e)),
            };
            Self::check(launch, index, &kernel)?;
            launches.push(Prepared { kernel, geometry, args: args.len() });
            args.extend_from_slice(&launch.args);
            args.resize(args.len().next_multiple_of(ARGS_ALIGN), 0);
        }
        let args = filled(&args)?;
        self.plans.push(Compiled { plan: plan.clone(), launches, args });
        Ok(PlanId(self.plans.len() - 1))
    }

    fn submit(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        let order = self.order(plan)?;
        let compiled = self.plan(plan)?;
        order.into_iter().try_for_each(|index| self.run(compiled, index))
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn run_launch(&mut self, plan: PlanId, launch: usize) -> Result<(), DeviceError> {
        let compiled = self.plan(plan)?;
        let launches = compiled.launches.len();
        if launch >= launches {
            return Err(DeviceError::no_launch(launch, launches));
        }
        self.run(compiled, launch)
    }

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        if self.storage[buffer.index()].block.read(offset, out) {
            return Ok(());
        }
        let name = &self.buffers.get(buffer).name;
        Err(DeviceError::Usage(format!("read outside of {name}")))
    }

    fn write(&mut self, buffer: BufferId, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        let Buffer { name, kind, .. } = self.buffers.get(buffer);
        if *kind == BufferKind::Weight {
            return Err(DeviceError::Usage(format!("{name} is a weight, weights are not written")));
        }
        if self.storage[buffer.index()].block.write(offset, data) {
            return Ok(());
        }
        Err(DeviceError::Usage(format!("write outside of {name}")))
    }

    fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }
}
