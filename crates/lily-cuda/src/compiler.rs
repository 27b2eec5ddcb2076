//! From Metal source to machine code: translation, NVRTC, and a cache on disk.
//!
//! A kernel is identified by its translated text, the preludes and the compiler options. Its machine code lies
//! in the cache under that hash, so a second start compiles nothing; compiled kernels that were exported
//! ([`Archive`](crate::archive::Archive)) serve a machine without NVRTC. Neither NVRTC's version nor the driver's
//! is part of the hash: machine code is for a GPU generation, and every driver that knows it loads it.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use lily_kernels::gpu::translate::{Dialect, Translation, translate};
use lily_kernels::gpu::{Family, Products, Source, Target, prelude};
use lily_plan::on_threads;
use sha2::{Digest, Sha256};

use crate::error::CudaError;
use crate::nvrtc::Nvrtc;

/// Compute capabilities from 8.0 on that NVRTC 12 or 13 knows, ten times each: what code can be exported for. A GPU that
/// is there is asked for its own.
const GENERATIONS: [u32; 12] = [80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121];

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

    /// The architecture of a name such as `sm_80` or `sm_90a`.
    ///
    /// # Errors
    /// The name has another form, or the generation is unknown or one that lily does not run on.
    pub fn parse(name: &str) -> Result<Self, String> {
        let own = |&capability: &u32| Self::of(capability / 10, capability % 10);
        let refused = || {
            let known: Vec<String> =
                GENERATIONS.iter().map(|capability| own(capability).0).collect();
            format!("expected a GPU generation, one of {}, found {name}", known.join(", "))
        };
        let number = name.strip_prefix("sm_").ok_or_else(refused)?;
        let digits = number.strip_suffix(['a', 'f']).unwrap_or(number);
        let known = GENERATIONS.iter().find(|capability| capability.to_string() == digits);
        let own = known.map(own).ok_or_else(refused)?;
        if own.0 != name {
            return Err(format!(
                "expected {}, which is what a GPU of this generation asks for, found {name}",
                own.0
            ));
        }
        Ok(own)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// What kernels choose their form by.
    pub fn target(&self) -> Target {
        let digits: String = self.0.chars().filter(char::is_ascii_digit).collect();
        // `of` and `parse` make no name without a number.
        let capability = digits.parse().unwrap_or_default();
        Target { family: Family::Nvidia { capability }, products: Products::SimdgroupMatrix }
    }
}

/// The cache folder, by the variables that name the user's caches and home. A relative folder of caches
/// is to be ignored: it would be another one wherever the program starts.
fn cache_below(caches: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let path = |value: OsString| (!value.is_empty()).then(|| PathBuf::from(value));
    let caches = caches.and_then(path).filter(|caches| caches.is_absolute());
    let base = caches.or_else(|| Some(home.and_then(path)?.join(".cache")))?;
    Some(base.join("lily").join("cuda"))
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
        cache_below(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))
    }

    /// Machine code of a kernel function.
    ///
    /// # Errors
    /// The kernel does not compile, or it is not in the cache and NVRTC is not there.
    pub fn compile(
        &self,
        kernel: &str,
        source: &Source,
        architecture: &Architecture,
    ) -> Result<Cubin, CudaError> {
        let wanted = Wanted::new(kernel, source, architecture)?;
        let path = self.cache.as_ref().map(|folder| folder.join(&wanted.file_name));
        let cached = path.as_deref().and_then(|path| std::fs::read(path).ok());
        if let Some(image) = cached.filter(|image| is_machine_code(image)) {
            return Ok(Cubin { image, report: String::new() });
        }
        let Wanted { translation, options, .. } = wanted;
        let compiled = self
            .nvrtc()?
            .compile(&translation.text, &format!("{kernel}.cu"), prelude::CUDA, &options)
            .map_err(|log| refused(kernel, architecture, log))?;
        if let Some(path) = path {
            store(&path, &compiled.cubin)?;
        }
        Ok(Cubin { image: compiled.cubin, report: compiled.log })
    }

    /// [`compile`](Self::compile) for several functions at once, by as many threads as there are processors;
    /// `done` hears of each one, on any of them.
    ///
    /// # Errors
    /// As [`compile`](Self::compile), of the first function in the list that fails.
    pub fn compile_all(
        &self,
        wanted: &[(&str, &Source)],
        architecture: &Architecture,
        done: &(dyn Fn() + Sync),
    ) -> Result<Vec<Cubin>, CudaError> {
        let next = AtomicUsize::new(0);
        let workers = thread::available_parallelism().map_or(1, |n| n.get()).min(wanted.len());
        let work = || {
            let mut own = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some((kernel, source)) = wanted.get(index) else { return own };
                own.push((index, self.compile(kernel, source, architecture)));
                done();
            }
        };
        let mut images: Vec<_> = on_threads(workers, work).into_iter().flatten().collect();
        images.sort_by_key(|(index, _)| *index);
        images.into_iter().map(|(_, cubin)| cubin).collect()
    }

    /// Whether the machine code of all these functions is in the cache.
    ///
    /// # Errors
    /// A text is outside of the dialect.
    pub fn has_all(
        &self,
        wanted: impl IntoIterator<Item = (&'static str, Source)>,
        architecture: &Architecture,
    ) -> Result<bool, CudaError> {
        let Some(cache) = &self.cache else { return Ok(false) };
        for (kernel, source) in wanted {
            if !begins_as_machine_code(&cache.join(file_name(kernel, &source, architecture)?)) {
                return Ok(false);
            }
        }
        Ok(true)
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

fn refused(kernel: &str, architecture: &Architecture, log: String) -> CudaError {
    CudaError::Compile { kernel: kernel.into(), architecture: architecture.name().into(), log }
}

/// A function that is to be compiled.
struct Wanted {
    translation: Translation,
    options: Vec<String>,
    file_name: String,
}

impl Wanted {
    fn new(kernel: &str, source: &Source, architecture: &Architecture) -> Result<Self, CudaError> {
        let translation = translate(source, Dialect::Cuda)
            .map_err(|error| refused(kernel, architecture, error.to_string()))?;
        let options = options(architecture);
        let file_name = format!("{kernel}-{}.cubin", fingerprint(&translation.text, &options));
        Ok(Self { translation, options, file_name })
    }
}

/// Name of the file in the cache with the machine code of a function.
///
/// # Errors
/// The text is outside of the dialect.
pub fn file_name(
    kernel: &str,
    source: &Source,
    architecture: &Architecture,
) -> Result<String, CudaError> {
    Ok(Wanted::new(kernel, source, architecture)?.file_name)
}

/// What machine code begins with.
const MACHINE_CODE: &[u8; 4] = b"\x7fELF";

/// Whether a file begins as machine code does: one that was cut off is compiled again.
pub(crate) fn is_machine_code(image: &[u8]) -> bool {
    image.starts_with(MACHINE_CODE)
}

fn begins_as_machine_code(path: &Path) -> bool {
    let mut begin = [0; MACHINE_CODE.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && is_machine_code(&begin)
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
pub(crate) fn store(path: &Path, image: &[u8]) -> Result<(), CudaError> {
    let failed = |action, error: std::io::Error| CudaError::File {
        action,
        path: path.display().to_string(),
        reason: error.to_string(),
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|e| failed("create the folder of", e))?;
    }
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let written = std::fs::write(&part, image).map_err(|e| failed("write", e));
    let written =
        written.and_then(|()| std::fs::rename(&part, path).map_err(|e| failed("rename to", e)));
    if written.is_err() {
        // A full disk leaves a part of it.
        let _ = std::fs::remove_file(&part);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_folder_of_caches_is_ignored() {
        let below = |caches: &str, home: &str| cache_below(Some(caches.into()), Some(home.into()));
        let root = std::env::temp_dir();
        let (caches, home) = (root.join("caches"), root.join("home"));
        let text = |path: &Path| path.to_str().expect("plain").to_string();
        assert_eq!(below(&text(&caches), &text(&home)), Some(caches.join("lily").join("cuda")));
        let of_home = Some(home.join(".cache").join("lily").join("cuda"));
        for ignored in ["", "caches", "./caches", "~/caches"] {
            assert_eq!(below(ignored, &text(&home)), of_home, "{ignored:?}");
        }
        assert_eq!(cache_below(Some("caches".into()), None), None);
        assert_eq!(cache_below(None, Some("".into())), None);
    }

    #[test]
    fn a_generation_has_one_name_and_another_one_is_told_it() {
        for name in ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"] {
            assert_eq!(Architecture::parse(name).expect(name).name(), name);
        }
        for (name, own) in [("sm_90", "sm_90a"), ("sm_100f", "sm_100a"), ("sm_80a", "sm_80")] {
            let refused = Architecture::parse(name).expect_err(name);
            assert!(refused.starts_with(&format!("expected {own}, ")), "{refused}");
            assert!(refused.ends_with(&format!(", found {name}")), "{refused}");
        }
        for name in ["", "sm_", "sm_75", "90a", "sm_9x", "sm_0080", "sm_999", "sm_4294967296"] {
            let refused = Architecture::parse(name).expect_err(name);
            let list =
                "expected a GPU generation, one of sm_80, sm_86, sm_87, sm_88, sm_89, sm_90a, ";
            assert!(refused.starts_with(list) && refused.ends_with(name), "{refused}");
        }
    }

    #[test]
    fn a_cache_has_all_functions_if_each_has_machine_code_for_the_generation() {
        let cache = tempfile::tempdir().expect("a folder");
        let compiler = |cache| Compiler::new(Some("/nowhere".into()), cache);
        let (with, without) = (compiler(Some(cache.path().into())), compiler(None));
        let source = crate::bandwidth::source();
        let wanted = || [("one", source.clone()), ("two", source.clone())];
        let (hopper, ampere) = (Architecture::of(9, 0), Architecture::of(8, 0));
        let has = |compiler: &Compiler, generation| {
            compiler.has_all(wanted(), generation).expect("it can be looked at")
        };
        for kernel in ["one", "two"] {
            assert!(!has(&with, &hopper), "{kernel} is not there");
            let name = file_name(kernel, &source, &hopper).expect("a name");
            std::fs::write(cache.path().join(&name), "cut").expect("it is written");
            assert!(!has(&with, &hopper), "{kernel} is no machine code");
            std::fs::write(cache.path().join(name), "\x7fELF").expect("it is written");
        }
        assert!(has(&with, &hopper) && !has(&with, &ampere) && !has(&without, &hopper));
    }
}
