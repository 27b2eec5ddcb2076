//! A host for the Metal device without Metal: every call of the encoder is recorded, and carried out on the MSL
//! test device.
//!
//! It is as unkind as Metal may be. A command buffer runs when somebody waits for it, not earlier. Dispatches
//! between two barriers run in any order; a command of an indirect command buffer without a barrier of its own may run
//! before all others of it. Bindings end where the encoder says. Memory that a command buffer under
//! way touches is refused to the host.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lily_kernels::gpu::{Products, Source, Target};
use lily_metal::arena::{AllocationId, Place};
use lily_metal::chip::SelfTest;
use lily_metal::encoder::check::PipelineInfo;
use lily_metal::encoder::{Command, IndirectCall, IndirectId, Limits, PipelineId, Work};
use lily_metal::{Failure, Host, HostError, Wanted};
use lily_msl_test::{Block, Build, Geometry, Kernel, Order, compile};

/// How a replay runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplayOptions {
    /// Seed of the order of dispatches between two barriers; `None` takes the order of the calls.
    pub shuffle: Option<u64>,
    /// What the device allows.
    pub limits: Limits,
    /// Tensor operations, as the device has them.
    pub tensors: Tensors,
    /// Whether pipelines can be had for indirect command buffers.
    pub indirect: Indirect,
    /// A kernel whose text the compiler refuses.
    pub refused: Option<&'static str>,
}

/// Indirect command buffers of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Indirect {
    /// Every function may be run by them.
    #[default]
    Every,
    /// None may.
    None,
}

/// Tensor operations of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tensors {
    /// The device has none.
    #[default]
    None,
    /// They multiply right.
    Right,
    /// They do not.
    Wrong,
}

/// What a test sees and does while a device has the host.
#[derive(Clone, Default)]
pub struct Remote(Arc<Mutex<Shared>>);

#[derive(Default)]
struct Shared {
    trace: Vec<Command>,
    broken: Option<usize>,
    lost: bool,
    rebuilt: usize,
    allocated: usize,
    waits: Vec<(u64, u64)>,
}

impl Remote {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the calls so far.
    pub fn trace(&self) -> Vec<Command> {
        std::mem::take(&mut self.shared().trace)
    }

    /// From now on launches with this index fail, whatever the plan; `None` mends them.
    pub fn break_launch(&self, launch: Option<usize>) {
        self.shared().broken = launch;
    }

    /// The next command buffer fails as a whole, though none of its launches does.
    pub fn lose_next(&self) {
        self.shared().lost = true;
    }

    /// How often memory was allocated.
    pub fn allocated(&self) -> usize {
        self.shared().allocated
    }

    /// Takes what was waited for so far: the serial of a command buffer, and that of the last one committed by then.
    pub fn waits(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.shared().waits)
    }

    /// How often the device started over.
    pub fn rebuilt(&self) -> usize {
        self.shared().rebuilt
    }
}

/// A dispatch with what was set when it came.
#[derive(Clone)]
struct Dispatch {
    pipeline: PipelineId,
    places: Vec<Place>,
    geometry: Geometry,
    work: Work,
    /// It waits for so many dispatches in front of it: all before it in its indirect command buffer.
    waits: usize,
}

/// A command of an indirect command buffer.
#[derive(Clone, Default)]
struct Entry {
    pipeline: Option<PipelineId>,
    bound: Vec<Option<Place>>,
    waits: bool,
    dispatch: Option<Dispatch>,
}

/// A command buffer.
struct Buffer {
    serial: u64,
    first: Work,
    /// Dispatches, apart at barriers.
    segments: Vec<Vec<Dispatch>>,
}

/// The host.
pub struct Replay {
    options: ReplayOptions,
    remote: Remote,
    blocks: Vec<Block>,
    kernels: Vec<Arc<Kernel>>,
    open: Option<Buffer>,
    queue: VecDeque<Buffer>,
    pipeline: Option<PipelineId>,
    bound: Vec<Option<Place>>,
    indirect: Vec<Vec<Entry>>,
    random: u64,
    self_test: SelfTest,
    /// Dispatches of the command buffer that ended last: the clock of this host.
    ticks: usize,
}

impl Replay {
    /// A host without memory, and its remote control.
    pub fn new(options: ReplayOptions) -> (Self, Remote) {
        let remote = Remote::default();
        let host = Self {
            options,
            remote: remote.clone(),
            blocks: Vec::new(),
            kernels: Vec::new(),
            open: None,
            queue: VecDeque::new(),
            pipeline: None,
            bound: Vec::new(),
            indirect: Vec::new(),
            random: options.shuffle.unwrap_or_default(),
            self_test: SelfTest::NotRun,
            ticks: 0,
        };
        (host, remote)
    }

    fn dispatch(
        &self,
        pipeline: Option<PipelineId>,
        bound: &[Option<Place>],
        geometry: Geometry,
        work: Work,
    ) -> Result<Dispatch, HostError> {
        let pipeline = pipeline.ok_or_else(|| wrong("a dispatch without a pipeline"))?;
        let count = self.kernels[pipeline.0].buffers().len();
        let places = bound.get(..count).unwrap_or(&[]).iter().copied();
        let places = places.collect::<Option<Vec<_>>>().filter(|places| !places.is_empty());
        let places = places.ok_or_else(|| wrong("a dispatch without one of its buffers"))?;
        Ok(Dispatch { pipeline, places, geometry, work, waits: 0 })
    }

    /// A call on a command of an indirect command buffer.
    fn encode(
        &mut self,
        IndirectId(id): IndirectId,
        command: u32,
        call: IndirectCall,
    ) -> Result<(), HostError> {
        let commands = self.indirect.get_mut(id);
        let entry = commands.and_then(|commands| commands.get_mut(command as usize));
        let entry = entry.ok_or_else(|| wrong("an indirect command that is not there"))?;
        match call {
            IndirectCall::SetPipeline(id) => entry.pipeline = Some(id),
            IndirectCall::SetBuffer { index, place } => {
                let index = index as usize;
                entry.bound.resize(entry.bound.len().max(index + 1), None);
                entry.bound[index] = Some(place);
            }
            IndirectCall::SetBarrier => entry.waits = true,
            IndirectCall::Dispatch { grid, threads, work } => {
                let geometry = Geometry { grid, threads };
                let entry = entry.clone();
                let mut dispatch = self.dispatch(entry.pipeline, &entry.bound, geometry, work)?;
                dispatch.waits = if entry.waits { command as usize } else { 0 };
                self.indirect[id][command as usize].dispatch = Some(dispatch);
            }
        }
        Ok(())
    }

    /// The dispatches of an indirect command buffer.
    fn indirect(&self, IndirectId(id): IndirectId) -> Result<Vec<Dispatch>, HostError> {
        let commands = self.indirect.get(id).ok_or_else(|| wrong("no indirect command buffer"))?;
        let dispatches = commands.iter().map(|entry| entry.dispatch.clone());
        let dispatches = dispatches.collect::<Option<Vec<_>>>();
        dispatches.ok_or_else(|| wrong("an indirect command that is not encoded"))
    }

    /// The order in which dispatches between two barriers run: any in which each comes behind those that it waits for.
    fn order(&mut self, segment: &[Dispatch]) -> Vec<usize> {
        if self.options.shuffle.is_none() {
            return (0..segment.len()).collect();
        }
        let mut order: Vec<usize> = Vec::with_capacity(segment.len());
        for (index, dispatch) in segment.iter().enumerate() {
            let waited = index - dispatch.waits..index;
            let first =
                order.iter().rposition(|other| waited.contains(other)).map_or(0, |at| at + 1);
            // A step of a linear congruential generator (Knuth, MMIX).
            self.random = self
                .random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let at = first + (self.random >> 33) as usize % (order.len() - first + 1);
            order.insert(at, index);
        }
        order
    }

    fn run(&self, dispatch: &Dispatch) -> Result<(), String> {
        if let (Work::Launch { launch, .. }, Some(broken)) =
            (dispatch.work, self.remote.shared().broken)
            && launch == broken
        {
            return Err("it is broken".into());
        }
        let part = |place: &Place| {
            self.blocks[place.allocation.0].part(place.offset as usize, place.bytes as usize)
        };
        let bindings = dispatch.places.iter().map(part).collect::<Option<Vec<_>>>();
        let bindings = bindings.ok_or("a binding is outside of its allocation")?;
        self.kernels[dispatch.pipeline.0]
            .run(dispatch.geometry, &bindings, Order::Forward, 2)
            .map_err(|failure| failure.to_string())
    }

    /// Changes the last bit of a result.
    fn spoil(&mut self, place: Place) {
        let block = &mut self.blocks[place.allocation.0];
        // A bit of the exponent: no tolerance hides it.
        if let Some([byte]) = block.bytes_mut(place.end() as usize - 1, 1) {
            *byte ^= 0x40;
        }
    }

    fn finish(&mut self, buffer: Buffer) -> Result<(), Failure> {
        let failure = |reason| Failure { first: buffer.first, reason };
        for segment in &buffer.segments {
            for index in self.order(segment) {
                let dispatch = &segment[index];
                self.run(dispatch).map_err(failure)?;
                // In force only while the device asks for them.
                if self.options.tensors == Tensors::Wrong && self.self_test == SelfTest::Passed {
                    dispatch.places.iter().for_each(|place| self.spoil(*place));
                }
            }
        }
        self.ticks = buffer.segments.iter().map(Vec::len).sum();
        if std::mem::take(&mut self.remote.shared().lost) {
            return Err(failure("the command buffer is lost".into()));
        }
        Ok(())
    }
}

fn wrong(what: &str) -> HostError {
    HostError::Unavailable(format!("{what}; the encoder is wrong"))
}

impl Host for Replay {
    fn description(&self) -> String {
        "replay on the MSL test device".into()
    }

    fn limits(&self) -> Limits {
        self.options.limits
    }

    fn target(&self) -> Target {
        match self.self_test {
            SelfTest::Passed => Target { products: Products::TensorOperations, ..Target::APPLE },
            SelfTest::Failed | SelfTest::NotRun => Target::APPLE,
        }
    }

    fn wants_self_test(&self) -> bool {
        self.options.tensors != Tensors::None
    }

    fn tested(&mut self, result: SelfTest) {
        self.self_test = result;
    }

    fn allocate(&mut self, sizes: &[u64]) -> Result<(), HostError> {
        self.remote.shared().allocated += 1;
        self.blocks.clear();
        self.indirect.clear();
        for &bytes in sizes {
            let failed = |reason| HostError::Memory { bytes, reason };
            let block = Block::new(bytes as usize).map_err(|error| failed(error.to_string()))?;
            self.blocks.push(block.ok_or_else(|| failed("no memory is left".into()))?);
        }
        Ok(())
    }

    fn bytes(&mut self, place: Place) -> Result<&mut [u8], HostError> {
        let dispatches =
            self.queue.iter().chain(&self.open).flat_map(|b| b.segments.iter().flatten());
        if let Some(other) = dispatches.into_iter().find(|d| touches(d, place)) {
            return Err(wrong(&format!(
                "{place:?} is touched while {:?} is under way",
                other.work
            )));
        }
        let AllocationId(index) = place.allocation;
        let block = self.blocks.get_mut(index);
        let bytes = block.and_then(|b| b.bytes_mut(place.offset as usize, place.bytes as usize));
        bytes.ok_or_else(|| wrong(&format!("{place:?} is nowhere")))
    }

    fn compile(&mut self, wanted: &[Wanted<'_>]) -> Result<Vec<PipelineInfo>, HostError> {
        let mut kernels = Vec::new();
        for wanted in wanted {
            let mut source = wanted.source.clone();
            if self.options.refused == Some(wanted.kernel) {
                source = Source::metal(format!("{}\nnonsense;\n", source.text), source.function);
            }
            kernels.push(compile(&source, Build::Fast).map_err(|error| HostError::Compile {
                kernel: wanted.kernel.into(),
                message: error.to_string(),
            })?);
        }
        // The runtime refuses more than 32 KB of threadgroup memory when a kernel runs.
        let may = self.options.indirect == Indirect::Every;
        let infos = wanted.iter().map(|wanted| PipelineInfo {
            max_threads: 1024,
            threadgroup_bytes: None,
            simd_width: 32,
            indirect: wanted.indirect && may,
        });
        let infos = infos.collect();
        self.kernels.extend(kernels);
        Ok(infos)
    }

    fn execute(&mut self, command: &Command) -> Result<(), HostError> {
        self.remote.shared().trace.push(*command);
        let no_buffer = || wrong("a call outside of a command buffer");
        match *command {
            Command::BeginCommandBuffer { serial, first } => {
                self.open = Some(Buffer { serial, first, segments: vec![Vec::new()] });
            }
            Command::BeginEncoder => {
                self.pipeline = None;
                self.bound = vec![None; self.options.limits.buffers as usize];
            }
            Command::SetPipeline(id) => self.pipeline = Some(id),
            Command::SetBuffer { index, place } => self.bound[index as usize] = Some(place),
            Command::SetOffset { index, place } => {
                let bound = self.bound[index as usize].as_mut();
                let bound = bound.ok_or_else(|| wrong("an offset without a buffer"))?;
                (bound.offset, bound.bytes) = (place.offset, place.bytes);
            }
            Command::Barrier => {
                self.open.as_mut().ok_or_else(no_buffer)?.segments.push(Vec::new());
            }
            Command::Dispatch { grid, threads, work } => {
                let geometry = Geometry { grid, threads };
                let dispatch = self.dispatch(self.pipeline, &self.bound, geometry, work)?;
                let open = self.open.as_mut().ok_or_else(no_buffer)?;
                open.segments.last_mut().ok_or_else(no_buffer)?.push(dispatch);
            }
            Command::NewIndirect { id, commands, .. } => {
                self.indirect.truncate(id.0);
                self.indirect.push(vec![Entry::default(); commands as usize]);
            }
            Command::Encode { id, command, call } => self.encode(id, command, call)?,
            Command::Execute { id, .. } => {
                let dispatches = self.indirect(id)?;
                let open = self.open.as_mut().ok_or_else(no_buffer)?;
                open.segments.last_mut().ok_or_else(no_buffer)?.extend(dispatches);
                // Not to be counted on behind it.
                self.pipeline = None;
                self.bound.fill(None);
            }
            Command::Commit => {
                let buffer = self.open.take().ok_or_else(no_buffer)?;
                self.queue.push_back(buffer);
            }
            Command::WaitFence
            | Command::UpdateFence
            | Command::EndEncoder
            | Command::Signal { .. } => {}
        }
        Ok(())
    }

    fn reach(&mut self, serial: u64) -> Result<(), Failure> {
        if let Some(last) = self.queue.back() {
            self.remote.shared().waits.push((serial, last.serial));
        }
        while let Some(buffer) = self.queue.pop_front_if(|buffer| buffer.serial <= serial) {
            self.finish(buffer)?;
        }
        Ok(())
    }

    /// A second for each dispatch.
    fn last_seconds(&self) -> Option<f64> {
        Some(self.ticks as f64)
    }

    fn rebuild(&mut self) -> Result<(), HostError> {
        self.remote.shared().rebuilt += 1;
        self.queue.clear();
        self.open = None;
        Ok(())
    }
}

fn touches(dispatch: &Dispatch, place: Place) -> bool {
    dispatch.places.iter().any(|other| other.overlaps(place))
}
