//! What the system says of itself and of its GPU.

use std::fmt;
use std::fs::File;
use std::os::fd::AsRawFd as _;

use objc2::sel;
use objc2_foundation::NSProcessInfo;
use objc2_metal::{MTLCreateSystemDefaultDevice, MTLDevice as _, MTLGPUFamily};

use super::{Gpu, responds};
use crate::chip::{GpuFamily, OsVersion};
use crate::machine::HostError;

// Without CoreGraphics there is no default device for a program without windows.
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

/// Oldest macOS: the first with residency sets, and with the language version that has bfloat.
const OLDEST: u32 = 15;

/// A Mac and its GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    /// Name of the GPU, such as `Apple M4 Pro`.
    pub name: String,
    /// Version of macOS.
    pub version: OsVersion,
    /// Version of macOS with its build, for people and for cached code.
    pub version_text: String,
    /// Newest generation that the GPU belongs to; `None` in virtual machines, which show an older family.
    pub generation: Option<GpuFamily>,
    /// Whether the GPU takes Metal 4.
    pub metal4: bool,
    /// Bytes that the system recommends for a GPU's memory.
    pub working_set_bytes: u64,
    /// Memory of the machine in bytes.
    pub memory_bytes: u64,
    /// Largest buffer in bytes.
    pub buffer_bytes: u64,
    /// Whether memory can be kept resident as a set.
    pub has_residency_sets: bool,
}

impl System {
    /// Whether the GPU has what the kernels use on Apple silicon: sums over simdgroups and
    /// `simdgroup_matrix` came with family 7. Virtual machines show an older one; kernels may run there all the
    /// same, and are tried when they are asked for by name.
    pub fn is_apple_silicon(&self) -> bool {
        self.generation.is_some()
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gigabytes = |bytes: u64| bytes as f64 / 1e9;
        write!(
            f,
            "{}, macOS {}, {:.0} GB, {:.1} GB of them for the GPU",
            self.name,
            self.version_text,
            gigabytes(self.memory_bytes),
            gigabytes(self.working_set_bytes)
        )
    }
}

/// Opens the default GPU.
pub(super) fn open() -> Result<(Gpu, System), HostError> {
    let process = NSProcessInfo::processInfo();
    let version = process.operatingSystemVersion();
    let number = |part: isize| u32::try_from(part).unwrap_or(0);
    let version =
        OsVersion { major: number(version.majorVersion), minor: number(version.minorVersion) };
    if version.major < OLDEST {
        let OsVersion { major, minor } = version;
        return Err(HostError::Unavailable(format!(
            "this is macOS {major}.{minor}, need macOS {OLDEST} or later; update it, or use --device cpu"
        )));
    }
    let gpu = MTLCreateSystemDefaultDevice().ok_or_else(|| {
        HostError::Unavailable("found no GPU with Metal; use --device cpu".into())
    })?;
    let supports = |family: i64| gpu.supportsFamily(MTLGPUFamily(family as isize));
    let system = System {
        name: gpu.name().to_string(),
        version,
        version_text: process.operatingSystemVersionString().to_string(),
        generation: GpuFamily::newest(supports),
        metal4: gpu.supportsFamily(MTLGPUFamily::Metal4),
        working_set_bytes: gpu.recommendedMaxWorkingSetSize(),
        memory_bytes: process.physicalMemory(),
        buffer_bytes: gpu.maxBufferLength() as u64,
        // Apple's table gives them to family 6 and later.
        has_residency_sets: gpu.supportsFamily(MTLGPUFamily::Apple6)
            && responds(&gpu, sel!(newResidencySetWithDescriptor:error:)),
    };
    Ok((gpu, system))
}

/// Has reads of a file go past the page cache; without it they are right, and cost memory for a while.
pub(super) fn past_the_cache(file: &File) {
    // SAFETY: the descriptor is the file's, which is open, and the call takes an int.
    let _ = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_NOCACHE, 1) };
}
