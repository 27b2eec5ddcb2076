//! What every device offers: buffers, weights, compiled plans.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use half::bf16;

use crate::buffer::{Buffer, BufferId, BufferKind, Buffers, Element};
use crate::matrix::Weight;
use crate::plan::Plan;

/// Weights by buffer name.
pub type Weights = BTreeMap<String, Weight>;

/// Element types a device wants for the inputs of matrix products, for the KV cache and for the chunked delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// Inputs of matrix products.
    pub act: Element,
    /// Keys and values.
    pub kv: Element,
    /// What the chunked delta rule of a prefill prepares for its scan: U, W and P.
    pub chunk: Element,
}

impl Precision {
    /// f32 throughout: the exact mode of the CPU, and the reference.
    pub const EXACT: Self = Self { act: Element::F32, kv: Element::F32, chunk: Element::F32 };
    /// bfloat16 inputs and cache, as on GPUs.
    pub const BF16: Self = Self { act: Element::Bf16, kv: Element::Bf16, chunk: Element::F32 };
    /// The same where the units for matrix products have 16-bit factors and the delta rule is one of theirs: NVIDIA's.
    pub const BF16_CHUNKS: Self = Self { chunk: Element::Bf16, ..Self::BF16 };
}

/// Launches that a device wants merged with a neighbour. The results are the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fusions {
    /// The choice of experts is repeated at the start of both expert products of a decode step,
    /// instead of a launch of its own in every layer.
    pub topk: bool,
    /// Norm and rotary of queries, and of the new key, at the start of decode attention.
    pub prepare: bool,
    /// Decode attention in one launch while the keys are few; see the plan builder for the limit.
    pub short: bool,
}

/// Handle of a plan compiled by a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanId(pub usize);

/// What can go wrong on a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A plan names a kernel that the device does not have.
    #[error("device {device} has no kernel `{kernel}`, named by launch {launch} of the plan")]
    MissingKernel {
        /// Device name.
        device: String,
        /// Kernel name.
        kernel: String,
        /// Index of the launch.
        launch: usize,
    },
    /// A kernel does not support a launch of the plan.
    #[error(
        "kernel `{kernel}` on device {device} cannot run launch {launch} of the plan: {reason}"
    )]
    Unsupported {
        /// Device name.
        device: String,
        /// Kernel name.
        kernel: String,
        /// Index of the launch.
        launch: usize,
        /// What was found, and what the kernel needs.
        reason: String,
    },
    /// The device, or something that it needs, is not there or does not answer.
    #[error("device {device}: {reason}")]
    Unavailable {
        /// Device name.
        device: String,
        /// What is missing or failed, and what to do.
        reason: String,
    },
    /// A fault has taken the device away from this program: every further call fails like this.
    #[error("device {device} is lost: {reason}")]
    Lost {
        /// Device name.
        device: String,
        /// What happened, and what to do.
        reason: String,
    },
    /// A weight buffer of the plan has no weight, or one of another shape.
    #[error(
        "weight `{name}` {found}, need {expected}; the checkpoint does not match its config.json"
    )]
    Weight {
        /// Buffer name.
        name: String,
        /// Shape needed.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A kernel failed while running.
    #[error("kernel `{kernel}` (launch {launch}) failed on device {device}: {reason}")]
    Launch {
        /// Device name.
        device: String,
        /// Kernel label.
        kernel: String,
        /// Index of the launch in its plan.
        launch: usize,
        /// What happened.
        reason: String,
    },
    /// The device cannot hold the buffers.
    #[error("device {device} cannot allocate {bytes} bytes: {reason}")]
    Memory {
        /// Device name.
        device: String,
        /// Bytes asked for.
        bytes: u64,
        /// What happened.
        reason: String,
    },
    /// A range outside of its buffer, or a call out of order.
    #[error("{0}")]
    Usage(String),
}

/// A weight file with its contents, mapped: weights are slices of them.
#[derive(Clone, Debug)]
pub struct MappedFile {
    /// The file.
    pub path: PathBuf,
    /// All of it.
    pub bytes: Bytes,
}

/// Hears how weights come into device memory: bytes that are there or on their way, and bytes of all. Called from any
/// thread.
pub type WeightWatch = Box<dyn Fn(u64, u64) + Send + Sync>;

/// Says of the plan of a chunk: behind fewer tokens than this it is one submission that surely ends before the system
/// takes the GPU away from it; `usize::MAX` if it is behind any. Chunks are chosen to be so; behind more tokens, the device runs
/// the plan in parts.
pub type WholeBelow = Box<dyn Fn(&Plan) -> usize>;

impl DeviceError {
    /// A plan that is none of the `compiled` ones.
    pub fn no_plan(plan: PlanId, compiled: usize) -> Self {
        Self::Usage(format!("plan {} is not one of {compiled}, compile it first", plan.0))
    }

    /// A launch that is none of the `launches` of its plan.
    pub fn no_launch(launch: usize, launches: usize) -> Self {
        Self::Usage(format!("launch {launch} of a plan of {launches}"))
    }
}

/// Memory for a model, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    /// What weights, states and work memory may take together.
    pub limit: u64,
    /// What the weights take of it: nothing where they are used in place.
    pub weights: u64,
}

/// Time spent on compiling kernels, summed over threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct CompileTimes {
    /// Seconds from source to the compiler's intermediate code.
    pub front: f64,
    /// Seconds from there to machine code, or for reading it from where it is kept.
    pub back: f64,
    /// Functions compiled.
    pub functions: usize,
    /// Of them, those whose machine code was kept from an earlier start.
    pub kept: usize,
}

/// Compiles and runs plans over one set of buffers.
///
/// A device is driven by one thread. [`submit`](Device::submit) may return before the plan has run;
/// reads and writes wait for everything submitted before them. A failure leaves a device that can be used, with all of its
/// buffers; only what the failed work writes is undefined. The exception is [`DeviceError::Lost`].
pub trait Device: Send {
    /// Short name: `cpu`, `metal`, `cuda`, `interpreter`.
    fn name(&self) -> &str;

    /// Element types this device wants; the plan builder declares buffers with them.
    fn precision(&self) -> Precision;

    /// Launches that this device wants merged; none unless a measurement says so.
    fn fusions(&self) -> Fusions {
        Fusions::default()
    }

    /// What says how deep in a context a chunk is still one submission; `None` where submissions may take any time.
    fn whole_below(&self) -> Option<WholeBelow> {
        None
    }

    /// What the device has for a model with these weights, now and before it is allocated; `None`
    /// where the system does not say.
    ///
    /// # Errors
    /// The device cannot be asked.
    fn memory_budget(&self, _weights: &Weights) -> Result<Option<MemoryBudget>, DeviceError> {
        Ok(None)
    }

    /// Bytes that the host has for copies of states, where its memory is not the one that
    /// [`memory_budget`](Device::memory_budget) tells of; `None` where it is the same.
    ///
    /// # Errors
    /// The device cannot be asked.
    fn host_memory(&self) -> Result<Option<u64>, DeviceError> {
        Ok(None)
    }

    /// Bytes that the device reads from its memory in a second, measured now; `None` where it does not
    /// measure.
    ///
    /// # Errors
    /// The measurement fails.
    fn read_bandwidth(&mut self) -> Result<Option<f64>, DeviceError> {
        Ok(None)
    }

    /// Time spent on compiling kernels so far; `None` where they are not compiled at run time.
    fn compile_times(&self) -> Option<CompileTimes> {
        None
    }

    /// Names the files that the weights of the next [`allocate`](Device::allocate) are slices of. A device that copies
    /// weights may read them from there, past the page cache; others take them as they are.
    fn weight_files(&mut self, _files: Vec<MappedFile>) {}

    /// Names who hears how the weights of the next [`allocate`](Device::allocate) are copied. Nobody does where weights
    /// are used in place.
    fn watch_weights(&mut self, _watch: WeightWatch) {}

    /// Allocates all buffers but the weights, and binds the weights. Memory is not cleared.
    fn allocate(&mut self, buffers: &Arc<Buffers>, weights: Weights) -> Result<(), DeviceError>;

    /// Prepares a plan over the allocated buffers. Fails if a kernel or a shape is missing.
    fn compile(&mut self, plan: &Arc<Plan>) -> Result<PlanId, DeviceError>;

    /// Starts a plan after everything submitted before.
    fn submit(&mut self, plan: PlanId) -> Result<(), DeviceError>;

    /// Waits for all submitted plans.
    fn wait(&mut self) -> Result<(), DeviceError>;

    /// Runs a single launch of a plan and waits: for comparisons launch by launch.
    fn run_launch(&mut self, plan: PlanId, launch: usize) -> Result<(), DeviceError>;

    /// Copies bytes out of a buffer in its element type, little-endian.
    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies bytes into a buffer.
    fn write(&mut self, buffer: BufferId, offset: usize, data: &[u8]) -> Result<(), DeviceError>;

    /// The allocated buffers.
    fn buffers(&self) -> &Arc<Buffers>;

    /// Time of each kernel of a plan, in the order of [`Plan::by_kernel`]: all of its launches, one after
    /// the other, `runs` times behind one time that is not counted. Buffers hold anything afterwards.
    /// Empty where a device does not measure.
    fn profile(&mut self, plan: PlanId, runs: usize) -> Result<Vec<KernelTime>, DeviceError> {
        let _ = (plan, runs);
        Ok(Vec::new())
    }

    /// Asks for a few bytes of a buffer as they are after everything submitted so far, without
    /// waiting; [`fetched`](Device::fetched) hands them out. So a host may submit further steps before
    /// it looks at the last one.
    fn fetch(
        &mut self,
        buffer: BufferId,
        offset: usize,
        bytes: usize,
    ) -> Result<Fetch, DeviceError> {
        let mut fetch = Fetch::ready(bytes)?;
        self.read(buffer, offset, fetch.bytes_mut())?;
        Ok(fetch)
    }

    /// Waits for the bytes of a fetch, and for nothing submitted after it.
    fn fetched(&mut self, fetch: Fetch) -> Result<Fetch, DeviceError> {
        Ok(fetch)
    }
}

/// Time that a kernel takes in a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelTime {
    /// Kernel.
    pub kernel: &'static str,
    /// Its launches.
    pub launches: usize,
    /// Seconds of all of them.
    pub seconds: f64,
}

/// Most bytes of one [`Device::fetch`].
pub const FETCH_BYTES: usize = 64;

/// Bytes that were asked for; they are there once [`Device::fetched`] has returned it.
#[derive(Clone, Copy, Debug)]
pub struct Fetch {
    bytes: [u8; FETCH_BYTES],
    count: usize,
    /// The device's own number of a fetch under way.
    pub ticket: u64,
}

impl Fetch {
    /// Room for `count` bytes.
    ///
    /// # Errors
    /// More than [`FETCH_BYTES`].
    pub fn ready(count: usize) -> Result<Self, DeviceError> {
        if count > FETCH_BYTES {
            let message = format!("a fetch of {count} bytes, need at most {FETCH_BYTES}");
            return Err(DeviceError::Usage(message));
        }
        Ok(Self { bytes: [0; FETCH_BYTES], count, ticket: 0 })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.count]
    }

    /// The bytes, to be filled by a device.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.count]
    }
}

/// Reads `count` elements of an f32 or bfloat16 buffer as f32.
pub fn read_f32(
    device: &mut dyn Device,
    buffer: BufferId,
    first: usize,
    count: usize,
) -> Result<Vec<f32>, DeviceError> {
    let element = device.buffers().get(buffer).element;
    let size = element.bytes().unwrap_or(0);
    let mut bytes = vec![0; count * size];
    device.read(buffer, first * size, &mut bytes)?;
    Ok(match element {
        Element::Bf16 => {
            bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
        }
        _ => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
    })
}

/// Reads `count` elements of an i32 buffer.
pub fn read_i32(
    device: &mut dyn Device,
    buffer: BufferId,
    first: usize,
    count: usize,
) -> Result<Vec<i32>, DeviceError> {
    let mut out = vec![0i32; count];
    device.read(buffer, first * 4, bytemuck::cast_slice_mut(&mut out))?;
    Ok(out)
}

/// Writes f32 values to an f32 buffer, or rounds them into a bfloat16 one.
pub fn write_f32(
    device: &mut dyn Device,
    buffer: BufferId,
    first: usize,
    values: &[f32],
) -> Result<(), DeviceError> {
    match device.buffers().get(buffer).element {
        Element::Bf16 => {
            let rounded: Vec<u8> =
                values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
            device.write(buffer, first * 2, &rounded)
        }
        _ => device.write(buffer, first * 4, bytemuck::cast_slice(values)),
    }
}

/// Writes i32 values.
pub fn write_i32(
    device: &mut dyn Device,
    buffer: BufferId,
    first: usize,
    values: &[i32],
) -> Result<(), DeviceError> {
    device.write(buffer, first * 4, bytemuck::cast_slice(values))
}

/// Checks a range that the host reads or writes; `size` is what the buffer takes on the device, `verb` says
/// "read" or "written".
///
/// # Errors
/// [`DeviceError::Usage`]: the buffer is a weight, or the range reaches beyond it.
pub fn check_range(
    buffer: &Buffer,
    size: u64,
    offset: usize,
    bytes: usize,
    verb: &str,
) -> Result<(), DeviceError> {
    let name = &buffer.name;
    if buffer.kind == BufferKind::Weight {
        return Err(DeviceError::Usage(format!("{name} is a weight, weights are not {verb}")));
    }
    if offset.checked_add(bytes).is_none_or(|end| end as u64 > size) {
        return Err(DeviceError::Usage(format!(
            "{bytes} bytes at {offset} of {name} are {verb}, it has {size}"
        )));
    }
    Ok(())
}

/// Checks that a plan is over the buffers that a device has allocated; used by devices when they compile.
pub fn check_plan(plan: &Plan, allocated: &Buffers) -> Result<(), DeviceError> {
    let same = |(a, b): ((BufferId, &Buffer), (BufferId, &Buffer))| {
        a.1.element == b.1.element && a.1.shape == b.1.shape
    };
    let declared = plan.buffers();
    if declared.len() == allocated.len() && declared.iter().zip(allocated.iter()).all(same) {
        return Ok(());
    }
    Err(DeviceError::Usage(format!(
        "the plan has {} buffers that are not the {} allocated ones; allocate the plan's",
        declared.len(),
        allocated.len()
    )))
}

/// Checks that every weight buffer has a weight of its shape and that none is left over; used by
/// devices when they allocate.
pub fn check_weights(buffers: &Buffers, weights: &Weights) -> Result<(), DeviceError> {
    let declared = buffers.iter().filter(|(_, b)| b.kind == BufferKind::Weight);
    for (_, buffer) in declared {
        let found = match weights.get(&buffer.name) {
            None => "is missing".to_string(),
            Some(weight) if fits(buffer, weight) => continue,
            Some(Weight::Vector(v)) => format!("is a vector of {} values", v.len()),
            Some(Weight::Matrix(m)) => {
                format!("is a matrix [{}, {}, {}]", m.experts(), m.rows(), m.k())
            }
        };
        let expected = format!("{} {:?}", buffer.element.name(), buffer.shape);
        return Err(DeviceError::Weight { name: buffer.name.clone(), expected, found });
    }
    Ok(())
}

fn fits(buffer: &Buffer, weight: &Weight) -> bool {
    match (weight, buffer.element) {
        (Weight::Matrix(m), Element::Matrix { .. }) => {
            let shape = [m.experts(), m.rows(), m.k()];
            shape == buffer.shape[..] || (m.experts() == 1 && shape[1..] == buffer.shape[..])
        }
        (Weight::Vector(v), Element::F32 | Element::Bf16) => v.len() == buffer.elements(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Step;

    #[test]
    fn a_plan_over_other_buffers_is_refused() {
        let buffers = |shapes: &[(Element, usize)]| {
            let mut table = Buffers::new();
            for (i, &(element, size)) in shapes.iter().enumerate() {
                table.add(BufferKind::Scratch, format!("b{i}"), element, [size]);
            }
            Arc::new(table)
        };
        let own = [(Element::F32, 4), (Element::Bf16, 8)];
        let step = Step::Decode { batch: 1 };
        let plan = Plan::new(step, buffers(&own), Vec::new()).expect("a plan without launches");
        assert!(check_plan(&plan, &buffers(&own)).is_ok());
        for other in [
            vec![(Element::F32, 4)],
            vec![(Element::F32, 4), (Element::Bf16, 9)],
            vec![(Element::F32, 4), (Element::F32, 8)],
        ] {
            let error = check_plan(&plan, &buffers(&other)).unwrap_err().to_string();
            assert!(error.starts_with("the plan has 2 buffers that are not the "), "{error}");
        }
    }
}
