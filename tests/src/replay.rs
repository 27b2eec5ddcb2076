//! A host for the Metal device without Metal: every call of the encoder is recorded, and carried out on the MSL
//! test device.
//!
//! It is as unkind as Metal may be. A command buffer runs when somebody waits for it, not earlier. Dispatches
//! between two barriers run in any order. Bindings end where the encoder says. Memory that a command buffer under
//! way touches is refused to the host.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lily_kernels::gpu::{Products, Target};
use lily_metal::arena::{AllocationId, Place};
use lily_metal::chip::SelfTest;
use lily_metal::encoder::check::PipelineInfo;
use lily_metal::encoder::{Command, Limits, PipelineId, Work};
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

    /// How often the device started over.
    pub fn rebuilt(&self) -> usize {
        self.shared().rebuilt
    }
}

/// A dispatch with what was set when it came.
struct Dispatch {
    pipeline: PipelineId,
    places: Vec<Place>,
    geometry: Geometry,
    work: Work,
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
            random: options.shuffle.unwrap_or_default(),
            self_test: SelfTest::NotRun,
            ticks: 0,
        };
        (host, remote)
    }

    fn dispatch(&self, grid: [u32; 3], threads: u32, work: Work) -> Result<Dispatch, HostError> {
        let pipeline = self.pipeline.ok_or_else(|| wrong("a dispatch without a pipeline"))?;
        let count = self.kernels[pipeline.0].buffers().len();
        let places = self.bound.iter().take(count).copied().collect::<Option<Vec<_>>>();
        let places = places.ok_or_else(|| wrong("a dispatch without one of its buffers"))?;
        Ok(Dispatch { pipeline, places, geometry: Geometry { grid, threads }, work })
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

    fn finish(&mut self, mut buffer: Buffer) -> Result<(), Failure> {
        let failure = |reason| Failure { first: buffer.first, reason };
        for segment in &mut buffer.segments {
            if self.options.shuffle.is_some() {
                for last in (1..segment.len()).rev() {
                    // A step of a linear congruential generator (Knuth, MMIX).
                    self.random = self
                        .random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    segment.swap(last, (self.random >> 33) as usize % (last + 1));
                }
            }
            for dispatch in segment.iter() {
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
        self.blocks.clear();
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
            kernels.push(compile(wanted.source, Build::Fast).map_err(|error| {
                HostError::Compile { kernel: wanted.kernel.into(), message: error.to_string() }
            })?);
        }
        // The runtime refuses more than 32 KB of threadgroup memory when a kernel runs.
        let info = PipelineInfo { max_threads: 1024, threadgroup_bytes: None, simd_width: 32 };
        let infos = vec![info; kernels.len()];
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
                let dispatch = self.dispatch(grid, threads, work)?;
                let open = self.open.as_mut().ok_or_else(no_buffer)?;
                open.segments.last_mut().ok_or_else(no_buffer)?.push(dispatch);
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
