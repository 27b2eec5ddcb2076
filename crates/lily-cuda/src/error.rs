//! What can go wrong before and while a GPU is used.

use lily_kernels::gpu::stored::Unreadable;
use lily_plan::DeviceError;

/// What to do about full device memory.
const FREE_MEMORY: &str = "end other programs on the GPU, or use a shorter context";

/// Errors of the CUDA device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver library is not there.
    #[error(
        "found no NVIDIA driver (libcuda.so.1 or nvcuda.dll); install the driver from \
         https://www.nvidia.com/drivers, or use --device cpu"
    )]
    NoDriver,
    /// The driver works but there is no GPU.
    #[error("the NVIDIA driver finds {found} GPUs, need number {wanted}; use --device cpu")]
    NoGpu {
        /// GPUs found.
        found: usize,
        /// Index asked for.
        wanted: usize,
    },
    /// The GPU is too old for the kernels.
    #[error("{name} has compute capability {found}, need at least 8.0 (Ampere); use --device cpu")]
    TooOld {
        /// Name of the GPU.
        name: String,
        /// Its compute capability.
        found: String,
    },
    /// The driver lacks calls that lily makes.
    #[error(
        "the NVIDIA driver offers CUDA {}.{}, need at least 11.8; install a newer one from \
         https://www.nvidia.com/drivers, or use --device cpu", .found / 1000, .found % 1000 / 10
    )]
    OldDriver {
        /// Version of CUDA that it offers, 1000 times the major number.
        found: i32,
    },
    /// NVRTC is not there and a kernel is not in the cache.
    #[error(
        "found no NVRTC library ({tried}); it comes with the CUDA toolkit and as the Python package \
         nvidia-cuda-nvrtc: name the library with LILY_NVRTC, or compile on another machine with `lily \
         kernels export` and run `lily kernels import` here"
    )]
    NoNvrtc {
        /// Names tried.
        tried: String,
    },
    /// NVRTC refuses a kernel.
    #[error("NVRTC does not compile kernel `{kernel}` for {architecture}: {log}")]
    Compile {
        /// Kernel.
        kernel: String,
        /// Target.
        architecture: String,
        /// What NVRTC says.
        log: String,
    },
    /// Device memory is full.
    #[error("{bytes} bytes of device memory were asked for, and {free} are free; {FREE_MEMORY}")]
    Memory {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes free.
        free: u64,
    },
    /// A driver call failed.
    #[error("{call} failed: {reason}")]
    Driver {
        /// Call and what it was for.
        call: String,
        /// The driver's name of the error.
        reason: String,
    },
    /// A file with weights cannot be read any more.
    #[error(transparent)]
    Weights(Unreadable),
    /// A file is no export of compiled kernels, or a damaged one.
    #[error("{path} {found}; export the kernels again with `lily kernels export`")]
    Archive {
        /// The file.
        path: String,
        /// What is wrong with it.
        found: String,
    },
    /// The file cache failed.
    #[error("cannot {action} {path}: {reason}")]
    File {
        /// What was tried.
        action: &'static str,
        /// File or folder.
        path: String,
        /// Why not.
        reason: String,
    },
}

impl From<CudaError> for DeviceError {
    fn from(error: CudaError) -> Self {
        let device = "cuda".into();
        match error {
            CudaError::Memory { bytes, free } => {
                let reason = format!("{free} are free; {FREE_MEMORY}");
                Self::Memory { device, bytes, reason }
            }
            other => Self::Unavailable { device, reason: other.to_string() },
        }
    }
}
