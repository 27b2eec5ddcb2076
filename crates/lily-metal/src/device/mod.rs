//! The `Device` trait over a host.

mod profile;
mod recover;
mod self_test;

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use lily_kernels::gpu::stored::WeightFiles;
use lily_kernels::gpu::{Entry, MatrixFormat, Source, weight_bytes};
use lily_plan::{
    BufferId, Buffers, CompileTimes, Device, DeviceError, FETCH_BYTES, Fetch, Fusions, KernelTime,
    MappedFile, MemoryBudget, Plan, PlanId, Precision, Step, Weight, Weights, WholeBelow,
    check_plan, check_range, check_weights, control,
};

use crate::arena::{Arguments, FETCH_SLOTS, Layout, Place};
use crate::budget::Budget;
use crate::encoder::check::{Facts, PipelineInfo, PlanFacts};
use crate::encoder::{
    Body, DecodeEncoding, DecodeSubmission, Encoded, Estimate, IndirectId, Limits, PipelineId,
    Prepared, Stream, encode, record,
};
use crate::fetch;
use crate::machine::{Host, NAME, Wanted};
use crate::upload;

/// How the device runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetalOptions {
    /// Command buffers of a decode step.
    pub decode: DecodeSubmission,
    /// Whether they are encoded each time or once.
    pub encoding: DecodeEncoding,
    /// Launches that are merged. None so far: no measurement on Apple silicon says so.
    pub fusions: Fusions,
}

/// A compiled plan.
struct Compiled {
    plan: Arc<Plan>,
    launches: Vec<Prepared>,
    estimate: Estimate,
    /// Stages in front of which it is cut. A chunk's follow the position of its last submission.
    cuts: Vec<usize>,
    /// One for each command buffer.
    bodies: Vec<Body>,
}

/// A small read under way.
#[derive(Clone, Copy, Debug)]
struct Pending {
    ticket: u64,
    serial: u64,
}

/// A GPU with Metal as a device, over its host.
pub struct MetalDevice<H> {
    options: MetalOptions,
    limits: Limits,
    host: H,
    stream: Stream,
    buffers: Arc<Buffers>,
    layout: Layout,
    arguments: Arguments,
    functions: HashMap<Source, PipelineId>,
    pipelines: Vec<PipelineInfo>,
    plans: Vec<Compiled>,
    /// Indirect command buffers so far.
    indirect: usize,
    files: WeightFiles,
    /// The function that copies small reads.
    copy: Option<PipelineId>,
    pending: [Option<Pending>; FETCH_SLOTS],
    tickets: u64,
}

impl<H: Host> MetalDevice<H> {
    /// A device without buffers.
    pub fn new(host: H, options: MetalOptions) -> Self {
        let mut device = Self {
            options,
            limits: host.limits(),
            host,
            stream: Stream::default(),
            buffers: Arc::default(),
            layout: Layout::default(),
            arguments: Arguments::default(),
            functions: HashMap::new(),
            pipelines: Vec::new(),
            plans: Vec::new(),
            indirect: 0,
            files: WeightFiles::default(),
            copy: None,
            pending: [None; FETCH_SLOTS],
            tickets: 0,
        };
        if device.host.wants_self_test() {
            device.test_tensors();
        }
        device
    }

    /// The host.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Calls `with` with what this device's commands are held against.
    ///
    /// # Errors
    /// The host does not give its memory.
    pub fn facts<T>(&mut self, with: impl FnOnce(&Facts<'_>) -> T) -> Result<T, DeviceError> {
        let arena = self.layout.arguments();
        let arguments = self.host.bytes(arena)?.to_vec();
        let plans = self.plans.iter().map(|compiled| {
            let entry = |index| {
                let (entry, _) = entry(&self.host, &self.layout, &compiled.plan, index)?;
                Ok((entry.grid, entry.threads))
            };
            let launches = 0..compiled.plan.launches().len();
            let sizes = launches.map(entry).collect::<Result<_, DeviceError>>()?;
            Ok(PlanFacts { plan: &compiled.plan, sizes })
        });
        Ok(with(&Facts {
            limits: &self.limits,
            layout: &self.layout,
            pipelines: &self.pipelines,
            plans: plans.collect::<Result<_, DeviceError>>()?,
            arguments: &arguments,
        }))
    }

    fn plan(&self, plan: PlanId) -> Result<&Compiled, DeviceError> {
        self.plans.get(plan.0).ok_or_else(|| DeviceError::no_plan(plan, self.plans.len()))
    }

    /// Compiles the functions that are new.
    fn load_functions(&mut self, wanted: &[(&str, &Source)]) -> Result<(), DeviceError> {
        // Plans share functions, so all of them are for both.
        let indirect = self.options.encoding == DecodeEncoding::Once;
        let mut new: Vec<Wanted<'_>> = Vec::new();
        for &(kernel, source) in wanted {
            if !self.functions.contains_key(source) && new.iter().all(|w| w.source != source) {
                new.push(Wanted { kernel, source, indirect });
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        let infos = self.host.compile(&new)?;
        for (wanted, info) in new.iter().zip(infos) {
            self.functions.insert(wanted.source.clone(), PipelineId(self.pipelines.len()));
            self.pipelines.push(info);
        }
        Ok(())
    }

    /// Where an argument struct lies; it is written when it is new.
    fn argument(&mut self, args: &[u8]) -> Result<Place, DeviceError> {
        let arena = self.layout.arguments();
        let (place, is_new) =
            self.arguments.place(arena, args, &self.limits).ok_or_else(|| DeviceError::Memory {
                device: NAME.into(),
                bytes: args.len() as u64,
                reason: "the argument structs of all plans fill their arena; load the model again"
                    .into(),
            })?;
        if is_new {
            self.host.bytes(place)?.copy_from_slice(args);
        }
        Ok(place)
    }

    /// Refuses a launch that the device cannot run.
    fn check_limits(
        &self,
        plan: &Plan,
        index: usize,
        launch: &Prepared,
    ) -> Result<(), DeviceError> {
        let (limits, info) = (&self.limits, self.pipelines[launch.pipeline.0]);
        let bytes = info.threadgroup_bytes.unwrap_or(0);
        let reason = if info.simd_width != limits.simd_width {
            format!("its simdgroups have {} threads, need {}", info.simd_width, limits.simd_width)
        } else if launch.threads > info.max_threads.min(limits.threads) {
            let most = info.max_threads.min(limits.threads);
            format!("it has {} threads in a threadgroup, need at most {most}", launch.threads)
        } else if bytes > limits.threadgroup_bytes {
            let most = limits.threadgroup_bytes;
            format!("it takes {bytes} bytes of threadgroup memory, need at most {most}")
        } else if launch.places.len() > limits.buffers as usize {
            format!("it takes {} buffers, need at most {}", launch.places.len(), limits.buffers)
        } else if self.options.encoding == DecodeEncoding::Once && !info.indirect {
            "Metal does not run it from indirect command buffers; encode each step".into()
        } else {
            return Ok(());
        };
        let kernel = plan.launches()[index].kernel.into();
        Err(DeviceError::Unsupported { device: NAME.into(), kernel, launch: index, reason })
    }

    /// A range of a buffer, checked.
    fn range(
        &self,
        buffer: BufferId,
        offset: usize,
        bytes: usize,
        verb: &str,
    ) -> Result<Place, DeviceError> {
        let place = self.layout.of(buffer);
        check_range(self.buffers.get(buffer), place.bytes, offset, bytes, verb)?;
        Ok(place.part(offset as u64, bytes as u64))
    }
}

/// The function that serves a launch, and its complete source.
fn entry<H: Host>(
    host: &H,
    layout: &Layout,
    plan: &Plan,
    index: usize,
) -> Result<(Entry, Source), DeviceError> {
    let launch = &plan.launches()[index];
    let formats: Vec<Option<MatrixFormat>> =
        launch.bindings.iter().map(|b| layout.format(b.buffer)).collect();
    let (face, entry) = host.target().entry(launch, index, &formats)?;
    let source = Source::assemble(launch.kernel, &face, &entry);
    Ok((entry, source))
}

impl<H: Host> Device for MetalDevice<H> {
    fn name(&self) -> &str {
        NAME
    }

    fn precision(&self) -> Precision {
        Precision::BF16
    }

    fn compile_times(&self) -> Option<CompileTimes> {
        self.host.compile_times()
    }

    fn memory_budget(&self, weights: &Weights) -> Result<Option<MemoryBudget>, DeviceError> {
        let Some(memory) = self.host.memory() else { return Ok(None) };
        let bytes = weights.values().map(|weight| weight_bytes(weight) as u64).sum();
        let budget = Budget::new(memory).of_model(bytes);
        budget.map(Some).map_err(|refused| DeviceError::Memory {
            device: NAME.into(),
            bytes,
            reason: refused.to_string(),
        })
    }

    fn fusions(&self) -> Fusions {
        self.options.fusions
    }

    fn whole_below(&self) -> Option<WholeBelow> {
        let pace = self.limits.pace;
        Some(Box::new(move |plan| Estimate::new(plan, pace).whole_below()))
    }

    fn weight_files(&mut self, files: Vec<MappedFile>) {
        self.files = WeightFiles::open(files, |file| self.host.past_the_cache(file));
    }

    fn allocate(&mut self, buffers: &Arc<Buffers>, weights: Weights) -> Result<(), DeviceError> {
        check_weights(buffers, &weights)?;
        self.wait()?;
        self.plans.clear();
        self.indirect = 0;
        self.arguments = Arguments::default();
        self.pending = [None; FETCH_SLOTS];
        self.buffers = buffers.clone();
        self.layout =
            Layout::new(buffers, &weights, &self.limits).map_err(|error| DeviceError::Memory {
                device: NAME.into(),
                bytes: error.bytes,
                reason: error.to_string(),
            })?;
        self.host.allocate(self.layout.sizes())?;
        self.stream.rebuilt();
        // They are needed once.
        let files = std::mem::take(&mut self.files);
        let threads = thread::available_parallelism().map_or(1, |n| n.get());
        for (id, buffer) in buffers.iter() {
            let place = self.layout.of(id);
            match (weights.get(&buffer.name), self.layout.format(id)) {
                (Some(Weight::Matrix(matrix)), Some(format)) => {
                    let to = self.host.bytes(place)?;
                    upload::matrix(matrix, format, &files, to, threads).map_err(|error| {
                        DeviceError::Unavailable { device: NAME.into(), reason: error.to_string() }
                    })?;
                }
                (Some(Weight::Vector(values)), _) => {
                    self.host.bytes(place)?.copy_from_slice(bytemuck::cast_slice(values));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn compile(&mut self, plan: &Arc<Plan>) -> Result<PlanId, DeviceError> {
        check_plan(plan, &self.buffers)?;
        let launches = plan.launches();
        let entries: Vec<(Entry, Source)> = (0..launches.len())
            .map(|index| entry(&self.host, &self.layout, plan, index))
            .collect::<Result<_, _>>()?;
        let kernels = launches.iter().zip(&entries).map(|(l, (_, source))| (l.kernel, source));
        self.load_functions(&kernels.collect::<Vec<_>>())?;
        let mut prepared = Vec::with_capacity(launches.len());
        for (index, (launch, (entry, source))) in launches.iter().zip(&entries).enumerate() {
            let args = self.argument(&launch.args)?;
            let buffers = launch.bindings.iter().map(|b| self.layout.of(b.buffer));
            let launch = Prepared {
                pipeline: self.functions[source],
                places: std::iter::once(args).chain(buffers).collect(),
                grid: entry.grid,
                threads: entry.threads,
            };
            self.check_limits(plan, index, &launch)?;
            prepared.push(launch);
        }
        let estimate = Estimate::new(plan, self.limits.pace);
        // A chunk is cut again where it runs.
        let cuts = estimate.cuts(0, self.options.decode);
        let bodies = match (plan.step(), self.options.encoding) {
            (Step::Decode { .. }, DecodeEncoding::Once) => self.encode(plan, &prepared, &cuts)?,
            _ => record(plan, self.plans.len(), &prepared, &cuts),
        };
        let plan = plan.clone();
        self.plans.push(Compiled { plan, launches: prepared, estimate, cuts, bodies });
        Ok(PlanId(self.plans.len() - 1))
    }

    /// The plan's last command buffer is committed by the next call, so that a read that follows goes into it.
    fn submit(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        if self.plan(plan)?.plan.step().is_prefill() {
            self.cut_chunk(plan)?;
        }
        let bodies = std::mem::take(&mut self.compiled_mut(plan)?.bodies);
        let sent = self.send(&bodies);
        self.compiled_mut(plan)?.bodies = bodies;
        Ok(sent?)
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        self.close()?;
        self.reach(self.stream.serial())
    }

    fn run_launch(&mut self, plan: PlanId, launch: usize) -> Result<(), DeviceError> {
        let compiled = self.plan(plan)?;
        let (recorded, found) = (compiled.plan.clone(), compiled.launches.len());
        if launch >= found {
            return Err(DeviceError::no_launch(launch, found));
        }
        self.wait()?;
        match self.run_alone(plan, launch)? {
            None => Ok(()),
            Some(failure) => Err(recover::failed(&recorded, launch, failure.reason)),
        }
    }

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        let place = self.range(buffer, offset, out.len(), "read")?;
        self.wait()?;
        out.copy_from_slice(self.host.bytes(place)?);
        Ok(())
    }

    fn write(&mut self, buffer: BufferId, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        let place = self.range(buffer, offset, data.len(), "written")?;
        self.wait()?;
        self.host.bytes(place)?.copy_from_slice(data);
        Ok(())
    }

    fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }

    fn profile(&mut self, plan: PlanId, runs: usize) -> Result<Vec<KernelTime>, DeviceError> {
        self.wait()?;
        self.kernel_times(plan, runs)
    }

    fn fetch(
        &mut self,
        buffer: BufferId,
        offset: usize,
        bytes: usize,
    ) -> Result<Fetch, DeviceError> {
        let from = self.range(buffer, offset, bytes, "read")?;
        let mut fetch = Fetch::ready(bytes)?;
        if bytes == 0 {
            fetch.ticket = u64::MAX;
            return Ok(fetch);
        }
        let copy = self.copy(from)?;
        let host = &mut self.host;
        let sent = self.stream.fetch(&copy, &mut |command| host.execute(command));
        let serial = match sent {
            Ok(serial) => serial,
            Err(error) => {
                self.rebuild()?;
                return Err(error.into());
            }
        };
        fetch.ticket = self.tickets;
        self.pending[slot(fetch.ticket)] = Some(Pending { ticket: fetch.ticket, serial });
        self.tickets += 1;
        Ok(fetch)
    }

    fn fetched(&mut self, mut fetch: Fetch) -> Result<Fetch, DeviceError> {
        if fetch.bytes().is_empty() {
            return Ok(fetch);
        }
        let slot = slot(fetch.ticket);
        let taken = self.pending[slot].take_if(|pending| pending.ticket == fetch.ticket);
        let pending = taken.ok_or_else(|| {
            DeviceError::Usage("this fetch was never started, or is taken already".into())
        })?;
        self.reach(pending.serial)?;
        let place = self.layout.slot(slot).part(0, fetch.bytes().len() as u64);
        let bytes = self.host.bytes(place)?;
        fetch.bytes_mut().copy_from_slice(bytes);
        Ok(fetch)
    }
}

fn slot(ticket: u64) -> usize {
    (ticket % FETCH_SLOTS as u64) as usize
}

impl<H: Host> MetalDevice<H> {
    /// Encodes the next plan into indirect command buffers.
    fn encode(
        &mut self,
        plan: &Plan,
        launches: &[Prepared],
        cuts: &[usize],
    ) -> Result<Vec<Body>, DeviceError> {
        let first = IndirectId(self.indirect);
        let Encoded { setup, bodies } = encode(plan, self.plans.len(), launches, cuts, first);
        setup.iter().try_for_each(|call| self.host.execute(call))?;
        self.indirect += bodies.len();
        Ok(bodies)
    }

    /// Cuts the plan of a chunk for the tokens that are in front of it now; records it anew only where that changes the
    /// cuts.
    fn cut_chunk(&mut self, id: PlanId) -> Result<(), DeviceError> {
        let position = self.position(id)?;
        let compiled = self.compiled_mut(id)?;
        let cuts = compiled.estimate.cuts(position, DecodeSubmission::Whole);
        if compiled.cuts != cuts {
            compiled.bodies = record(&compiled.plan, id.0, &compiled.launches, &cuts);
            compiled.cuts = cuts;
        }
        Ok(())
    }

    /// Tokens in front of a chunk, from the control block. Reading it waits for what is under way, which may move them;
    /// behind the engine nothing is, because it writes the control block right before a chunk.
    fn position(&mut self, id: PlanId) -> Result<usize, DeviceError> {
        let Compiled { plan, estimate, .. } = self.plan(id)?;
        let (Step::Prefill { sequence, .. }, Some(control)) =
            (plan.step(), plan.buffers().find(control::NAME))
        else {
            return Ok(estimate.last_position());
        };
        let mut word = [0; 4];
        self.read(control, 4 * (sequence * control::WORDS + control::POSITION), &mut word)?;
        Ok(usize::try_from(i32::from_le_bytes(word)).unwrap_or(0))
    }

    fn compiled_mut(&mut self, plan: PlanId) -> Result<&mut Compiled, DeviceError> {
        let found = self.plans.len();
        self.plans.get_mut(plan.0).ok_or_else(|| DeviceError::no_plan(plan, found))
    }

    /// The copy of a small read into the next slot.
    fn copy(&mut self, from: Place) -> Result<Prepared, DeviceError> {
        let pipeline = match self.copy {
            Some(pipeline) => pipeline,
            None => {
                let source = fetch::source();
                self.load_functions(&[("fetch", &source)])?;
                *self.copy.insert(self.functions[&source])
            }
        };
        let bytes = u32::try_from(from.bytes).unwrap_or(FETCH_BYTES as u32);
        let args = self.argument(&bytes.to_le_bytes())?;
        let to = self.layout.slot(slot(self.tickets)).part(0, from.bytes);
        Ok(Prepared {
            pipeline,
            places: vec![args, from, to],
            grid: [1; 3],
            threads: fetch::THREADS,
        })
    }
}
