//! From Metal source to machine code: translation, NVRTC, and a cache on disk.
//!
//! A kernel is identified by its translated text, the preludes, the compiler options and NVRTC's version. Its
//! machine code lies in the cache under that hash, so a second start compiles nothing; a copied
//! cache folder serves a machine without NVRTC.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use lily_kernels::gpu::translate::{Dialect, translate};
use lily_kernels::gpu::{Source, prelude};
use sha2::{Digest, Sha256};

use crate::error::CudaError;
use crate::nvrtc::Nvrtc;

/// A GPU generation to compile for, such as `sm_90a`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Architecture(String);

impl Architecture {
    /// The native architecture of a compute capability, with its own instructions where there are
    /// any.
    pub fn of(major: u32, minor: u32) -> Self {
        let own = if major >= 9 { "a" } else { "" };
        Self(format!("sm_{major}{minor}{own}"))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// Machine code of one kernel function.
#[derive(Clone, Debug)]
pub struct Cubin {
    /// The image that the driver loads.
    pub image: Vec<u8>,
    /// The assembler's report; empty if the code comes from the cache.
    pub report: String,
}

/// What a kernel needs of the chip, from the assembler's report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of static shared memory of a block.
    pub shared_bytes: u32,
    /// Bytes that spill to memory, stores and loads.
    pub spill_bytes: u32,
}

impl Resources {
    /// Reads the report; `None` if it holds no numbers.
    pub fn parse(report: &str) -> Option<Self> {
        let before = |word: &str| {
            let at = report.find(word)?;
            report[..at].trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        let registers = before("registers")?;
        Some(Self {
            registers,
            shared_bytes: before("bytes smem").unwrap_or(0),
            spill_bytes: before("bytes spill stores").unwrap_or(0)
                + before("bytes spill loads").unwrap_or(0),
        })
    }
}

/// Compiles kernels, or takes them from the cache.
pub struct Compiler {
    library: Option<PathBuf>,
    cache: Option<PathBuf>,
    nvrtc: OnceLock<Result<Nvrtc, String>>,
}

impl Compiler {
    /// A compiler; NVRTC is loaded when the first kernel is not in the cache. `library` names
    /// NVRTC, `None` looks for it; without a `cache` folder nothing is kept.
    pub fn new(library: Option<PathBuf>, cache: Option<PathBuf>) -> Self {
        Self { library, cache, nvrtc: OnceLock::new() }
    }

    /// The user's cache folder, if the system has one.
    pub fn default_cache() -> Option<PathBuf> {
        let home = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let base = home("XDG_CACHE_HOME").or_else(|| Some(home("HOME")?.join(".cache")))?;
        Some(base.join("lily").join("cuda"))
    }

    /// Machine code of a kernel function.
    pub fn compile(
        &self,
        kernel: &str,
        source: &Source,
        architecture: &Architecture,
    ) -> Result<Cubin, CudaError> {
        let refused = |log: String| CudaError::Compile {
            kernel: kernel.into(),
            architecture: architecture.name().into(),
            log,
        };
        let translation =
            translate(source, Dialect::Cuda).map_err(|error| refused(error.to_string()))?;
        let options = options(architecture);
        let path = self.cache.as_ref().map(|folder| {
            folder.join(format!("{kernel}-{}.cubin", fingerprint(&translation.text, &options)))
        });
        if let Some(image) = path.as_deref().and_then(|path| std::fs::read(path).ok()) {
            return Ok(Cubin { image, report: String::new() });
        }
        let compiled = self
            .nvrtc()?
            .compile(&translation.text, &format!("{kernel}.cu"), prelude::CUDA, &options)
            .map_err(refused)?;
        if let Some(path) = path {
            store(&path, &compiled.cubin)?;
        }
        Ok(Cubin { image: compiled.cubin, report: compiled.log })
    }

    fn nvrtc(&self) -> Result<&Nvrtc, CudaError> {
        let loaded = self.nvrtc.get_or_init(|| {
            Nvrtc::load(self.library.as_deref()).map_err(|error| match error {
                CudaError::NoNvrtc { tried } => tried,
                other => other.to_string(),
            })
        });
        loaded.as_ref().map_err(|tried| CudaError::NoNvrtc { tried: tried.clone() })
    }

    /// Version of NVRTC, loading it.
    pub fn nvrtc_version(&self) -> Result<(i32, i32), CudaError> {
        Ok(self.nvrtc()?.version())
    }
}

fn options(architecture: &Architecture) -> Vec<String> {
    let architecture = format!("--gpu-architecture={}", architecture.name());
    let fixed = [
        "--std=c++20",
        "--device-as-default-execution-space",
        // As under Metal's default fast mathematics; `precise::` functions are exact all the same.
        "-use_fast_math",
        "-lineinfo",
        "--ptxas-options=-v",
        // Unused functions and parameters of shared headers.
        "-diag-suppress=177,20054",
    ];
    std::iter::once(architecture).chain(fixed.map(String::from)).collect()
}

/// Hash of everything that the machine code depends on but the compiler's version: a cache made by
/// one version serves the next.
fn fingerprint(text: &str, options: &[String]) -> String {
    let mut hash = Sha256::new();
    for part in options.iter().map(String::as_str).chain([text]) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    for (name, content) in prelude::CUDA {
        hash.update(name);
        hash.update(content);
    }
    hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a file whole or not at all: another process may do the same.
fn store(path: &Path, image: &[u8]) -> Result<(), CudaError> {
    let failed = |action, error: std::io::Error| CudaError::File {
        action,
        path: path.display().to_string(),
        reason: error.to_string(),
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|e| failed("create the folder of", e))?;
    }
    let part = path.with_extension(format!("{}.part", std::process::id()));
    std::fs::write(&part, image).map_err(|e| failed("write", e))?;
    std::fs::rename(&part, path).map_err(|e| failed("rename to", e))
}

/// A compiler shared by threads.
pub type SharedCompiler = Arc<Compiler>;
