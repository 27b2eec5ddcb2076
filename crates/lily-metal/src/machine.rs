//! What the device needs of a host: memory, compiled functions, and the calls of the encoder.

use std::fs::File;

use lily_kernels::gpu::{Source, Target};
use lily_plan::{CompileTimes, DeviceError};

use crate::arena::Place;
use crate::budget::DeviceMemory;
use crate::chip::SelfTest;
use crate::encoder::check::PipelineInfo;
use crate::encoder::{Command, Limits, Work};

/// Name of the device in messages.
pub const NAME: &str = "metal";

/// What a host can fail with outside of a command buffer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The GPU, or something that it needs, is not there.
    #[error("{0}")]
    Unavailable(String),
    /// An allocation failed.
    #[error("cannot allocate {bytes} bytes: {reason}")]
    Memory {
        /// Bytes asked for.
        bytes: u64,
        /// What happened.
        reason: String,
    },
    /// Metal's compiler refuses a kernel.
    #[error("Metal does not compile kernel `{kernel}`: {message}")]
    Compile {
        /// Kernel.
        kernel: String,
        /// What the compiler says.
        message: String,
    },
}

impl From<HostError> for DeviceError {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Memory { bytes, reason } => {
                Self::Memory { device: NAME.into(), bytes, reason }
            }
            other => Self::Unavailable { device: NAME.into(), reason: other.to_string() },
        }
    }
}

/// A command buffer that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What its first dispatch does.
    pub first: Work,
    /// What happened, as the system says.
    pub reason: String,
}

/// A function to compile.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Name of the kernel, for messages.
    pub kernel: &'a str,
    /// Complete text.
    pub source: &'a Source,
    /// Indirect command buffers run it.
    pub indirect: bool,
}

/// A GPU, or what stands in for one. It decides nothing: [`MetalDevice`](crate::MetalDevice) does.
pub trait Host: Send {
    /// What it is, for people.
    fn description(&self) -> String;

    /// What it allows.
    fn limits(&self) -> Limits;

    /// What kernels may count on.
    fn target(&self) -> Target;

    /// What the system says about memory; `None` if it says nothing.
    fn memory(&self) -> Option<DeviceMemory> {
        None
    }

    /// Whether a self-test of tensor operations could change [`target`](Self::target).
    fn wants_self_test(&self) -> bool {
        false
    }

    /// What the self-test gave.
    fn tested(&mut self, _result: SelfTest) {}

    /// Has reads of a file go past the page cache, if the system can.
    fn past_the_cache(&self, _file: &File) {}

    /// Makes the allocations of a session in place of all earlier ones, and keeps them resident, with a new queue and
    /// fence and without indirect command buffers. Nothing is under way. Memory is not cleared.
    ///
    /// # Errors
    /// There is no room.
    fn allocate(&mut self, sizes: &[u64]) -> Result<(), HostError>;

    /// The bytes of a place. Nothing under way touches them.
    ///
    /// # Errors
    /// There is no such place.
    fn bytes(&mut self, place: Place) -> Result<&mut [u8], HostError>;

    /// Compiles functions, several at once, and appends them to the pipelines in the order given.
    ///
    /// # Errors
    /// The first that is refused; then none is appended.
    fn compile(&mut self, wanted: &[Wanted<'_>]) -> Result<Vec<PipelineInfo>, HostError>;

    /// Time spent on compiling so far; `None` if the host does not measure it.
    fn compile_times(&self) -> Option<CompileTimes> {
        None
    }

    /// Carries out one call.
    ///
    /// # Errors
    /// A command buffer, an encoder or an indirect command buffer cannot be had.
    fn execute(&mut self, command: &Command) -> Result<(), HostError>;

    /// Waits until the command buffer of a serial, and all before it, are done.
    ///
    /// # Errors
    /// The first one that failed.
    fn reach(&mut self, serial: u64) -> Result<(), Failure>;

    /// Seconds for which the command buffer that was last reached held the GPU; `None` if the host has no clock.
    fn last_seconds(&self) -> Option<f64> {
        None
    }

    /// Starts over after a failure: drops what is under way, with a new queue and fence. Memory, pipelines and indirect
    /// command buffers stay.
    ///
    /// # Errors
    /// The GPU does not answer.
    fn rebuild(&mut self) -> Result<(), HostError>;
}
