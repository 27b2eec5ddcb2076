//! The GPU face of a kernel: one Metal text, `kernel.metal` in the kernel's folder, for Apple GPUs, for
//! NVIDIA GPUs through a CUDA prelude, and for the MSL test device that runs it on any CPU.
//!
//! A [`GpuFace`] says which function of the text serves a launch, with which constants, over which
//! grid. [`Source::assemble`] puts the constants, the argument struct and the shared headers together with the
//! text; what it gives is complete Metal source. Every kernel function takes the argument struct as
//! `constant Args& args [[buffer(0)]]` and binding `i` of the launch as `[[buffer(i + 1)]]`.
//!
//! [`matrix`] is the layout of weight matrices in device memory. [`translate`](translate::translate) and
//! [`prelude`] give the text to other compilers than Apple's.

pub(crate) mod gemv;
mod listing;
pub mod matrix;
pub mod prelude;
mod self_test;
mod source;
pub mod stored;
mod structs;
pub(crate) mod tiles;
pub mod translate;
pub(crate) mod warpgroups;

use lily_plan::{DeviceError, Launch};

pub use listing::add_entries;
pub use matrix::{MatrixFormat, weight_bytes};
pub use self_test::{WrongProducts, check_products};
pub use source::{HEADERS, Language, Source};
pub(crate) use structs::msl_struct;
pub use structs::{Field, MslStruct};

use crate::table;

/// The GPU face of a kernel.
#[derive(Clone, Copy)]
pub struct GpuFace {
    /// `kernel.metal`.
    pub text: &'static str,
    /// The argument struct as Metal text, with the structs inside it.
    pub args: fn() -> String,
    /// Chooses the function, its constants and its grid, or says why the launch is not supported.
    pub entry: fn(&GpuLaunch<'_>) -> Result<Entry, Unsupported>,
}

/// A launch as its GPU face sees it when a plan is compiled.
#[derive(Clone, Copy, Debug)]
pub struct GpuLaunch<'a> {
    /// The argument struct as bytes.
    pub args: &'a [u8],
    /// Grid declared by the launch.
    pub grid: [u32; 3],
    /// Threads declared by the launch.
    pub threads: u32,
    /// Device format of each binding that is a matrix.
    pub formats: &'a [Option<MatrixFormat>],
    /// What runs it.
    pub target: Target,
}

impl GpuLaunch<'_> {
    /// The argument struct.
    ///
    /// # Panics
    /// If `A` is not the launch's argument struct.
    pub fn args<A: bytemuck::Pod>(&self) -> A {
        bytemuck::pod_read_unaligned(self.args)
    }

    /// Format of the matrix at a binding.
    pub fn format(&self, binding: usize) -> Result<MatrixFormat, Unsupported> {
        let format = self.formats.get(binding).copied().flatten();
        format.ok_or_else(|| Unsupported(format!("binding {binding} is no matrix, need one")))
    }

    /// An entry over the declared grid and threads.
    pub fn entry(&self, function: &'static str) -> Entry {
        let (grid, threads) = (self.grid, self.threads);
        Entry { function, text: None, constants: Vec::new(), grid, threads, shared: 0 }
    }
}

/// What a device offers. Policies choose among legal variants by it; an unknown device gets defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Maker and generation.
    pub family: Family,
    /// Instructions for matrix products.
    pub products: Products,
}

/// Maker and generation of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Apple silicon.
    Apple,
    /// NVIDIA, with its compute capability: 80, 90.
    Nvidia {
        /// Ten times the major number plus the minor one.
        capability: u32,
    },
    /// The MSL test device.
    Test,
}

/// Form of the inner product of matrix tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Products {
    /// `simdgroup_matrix`, 8 x 8; `mma` on NVIDIA.
    SimdgroupMatrix,
    /// Metal 4 tensor operations.
    TensorOperations,
}

impl Family {
    /// The device that runs it, as it is named in messages.
    fn device(self) -> &'static str {
        match self {
            Self::Apple => "metal",
            Self::Nvidia { .. } => "cuda",
            Self::Test => "msl-test",
        }
    }
}

impl Target {
    /// The face of a launch's kernel and the function that serves the launch. `index` is its place in the
    /// plan; `formats` are the device formats of its bindings that are matrices.
    ///
    /// # Errors
    /// [`DeviceError::MissingKernel`] and [`DeviceError::Unsupported`], which name the kernel.
    pub fn entry(
        self,
        launch: &Launch,
        index: usize,
        formats: &[Option<MatrixFormat>],
    ) -> Result<(GpuFace, Entry), DeviceError> {
        let (device, kernel) = (self.family.device(), launch.kernel);
        let face = table::find(kernel).and_then(|kernel| kernel.gpu).ok_or_else(|| {
            DeviceError::MissingKernel {
                device: device.into(),
                kernel: kernel.into(),
                launch: index,
            }
        })?;
        let entry = (face.entry)(&GpuLaunch {
            args: &launch.args,
            grid: launch.grid,
            threads: launch.threads,
            formats,
            target: self,
        });
        let entry = entry.map_err(|reason| DeviceError::Unsupported {
            device: device.into(),
            kernel: kernel.into(),
            launch: index,
            reason: reason.to_string(),
        })?;
        Ok((face, entry))
    }

    /// Apple silicon of any generation: the form of matrix products that all of them have.
    pub const APPLE: Self = Self { family: Family::Apple, products: Products::SimdgroupMatrix };
    /// NVIDIA GPUs of compute capability 9.0.
    pub const NVIDIA: Self =
        Self { family: Family::Nvidia { capability: 90 }, products: Products::SimdgroupMatrix };
    /// The MSL test device with the common form of matrix products.
    pub const TEST: Self = Self { family: Family::Test, products: Products::SimdgroupMatrix };
}

/// One file of a kernel's folder: Metal text, or CUDA text for one generation of NVIDIA GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    /// Name of the file; CUDA text ends in `.cu`.
    pub name: &'static str,
    /// What is in it.
    pub content: &'static str,
}

/// The function that serves a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name in the kernel's text.
    pub function: &'static str,
    /// The text with the function, if it is not the face's own.
    pub text: Option<Text>,
    /// Preprocessor constants in front of the text, by name.
    pub constants: Vec<(&'static str, String)>,
    /// Threadgroups.
    pub grid: [u32; 3],
    /// Threads of a threadgroup, a multiple of 32.
    pub threads: u32,
    /// Bytes of threadgroup memory beside what the text declares: `extern __shared__` of a CUDA text.
    pub shared: u32,
}

impl Entry {
    /// Adds an unsigned constant.
    pub fn constant(mut self, name: &'static str, value: impl Into<u64>) -> Self {
        self.constants.push((name, value.into().to_string()));
        self
    }

    /// Adds a float constant, with all of its digits.
    pub fn float(mut self, name: &'static str, value: f32) -> Self {
        self.constants.push((name, format!("{value:e}f")));
        self
    }

    /// Takes the function from another file of the kernel's folder.
    pub fn from_text(mut self, name: &'static str, content: &'static str) -> Self {
        self.text = Some(Text { name, content });
        self
    }

    /// Asks for threadgroup memory beside what the text declares.
    pub fn shared(mut self, bytes: u32) -> Self {
        self.shared = bytes;
        self
    }

    /// Replaces the grid.
    pub fn over(mut self, grid: [u32; 3], threads: u32) -> Self {
        (self.grid, self.threads) = (grid, threads);
        self
    }
}

/// Why a kernel does not support a launch: the sentence names what was found and what it needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

impl Unsupported {
    /// Checks that `found` is a multiple of `of`.
    pub fn unless_multiple(name: &str, found: u32, of: u32) -> Result<(), Self> {
        if found.is_multiple_of(of) {
            return Ok(());
        }
        Err(Self(format!("{name} is {found}, need a multiple of {of}")))
    }

    /// Checks that `found` is at most `limit`.
    pub fn above(name: &str, found: u32, limit: u32) -> Result<(), Self> {
        if found <= limit {
            return Ok(());
        }
        Err(Self(format!("{name} is {found}, need at most {limit}")))
    }
}
