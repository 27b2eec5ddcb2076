//! clang: finds it, compiles the runtime once and each kernel once, and keeps both in the cache folder.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use lily_kernels::gpu::Source;
use lily_kernels::gpu::prelude;
use lily_kernels::gpu::translate::{Dialect, TranslateError, Translation, translate};

use crate::cache;
use crate::ffi::{Kernel, Runtime};

/// How a kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Build {
    /// With Metal's address spaces.
    Fast,
    /// With a check of every access.
    Checked,
}

/// Why a kernel is not compiled.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// No clang, or one that does not work.
    #[error(
        "{0}; the MSL test device needs clang 19 or later: install it (`apt install clang-19`) or name it in \
         LILY_CLANG"
    )]
    Clang(String),
    /// A file of the cache folder cannot be written or loaded.
    #[error("{path}: {reason}")]
    Cache {
        /// The file.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The text is outside of the dialect.
    #[error(transparent)]
    Translate(#[from] TranslateError),
    /// clang refuses the text.
    #[error("{0}")]
    Text(String),
}

/// Files of the runtime, first those that are compiled.
const RUNTIME: &[(&str, &str)] = &[
    ("fiber.cpp", include_str!("../runtime/fiber.cpp")),
    ("memory.cpp", include_str!("../runtime/memory.cpp")),
    ("schedule.cpp", include_str!("../runtime/schedule.cpp")),
    ("check.cpp", include_str!("../runtime/check.cpp")),
    ("fault.cpp", include_str!("../runtime/fault.cpp")),
    ("dispatch.cpp", include_str!("../runtime/dispatch.cpp")),
    ("engine.h", include_str!("../runtime/engine.h")),
    ("fiber.h", include_str!("../runtime/fiber.h")),
];

/// Symbols are bound when a library is loaded: the binder needs more stack than a fiber has.
const SHARED: &[&str] = &["-shared", "-fPIC", "-g1", "-fdebug-compilation-dir=.", "-Wl,-z,now"];

/// No contraction: sums and products round as they are written. Large frames touch every page of their
/// stack, and so the unmapped one at its end.
const KERNEL: &[&str] = &[
    "-fstack-clash-protection",
    "-ffp-contract=off",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-nostdlib",
    "-lm",
    "-Wno-duplicate-decl-specifier",
];

/// Warnings that stand for what Metal refuses: doubles, implicit rounding, arrays of variable length.
const FAST: &[&str] = &[
    "-O2",
    "-Werror",
    "-Wall",
    "-Wextra",
    "-Wdouble-promotion",
    "-Wimplicit-float-conversion",
    "-Wshadow",
    "-Wvla",
    "-Wc++17-extensions",
    "-Wno-unused-function",
    "-Wno-unused-parameter",
    "-Wno-unused-const-variable",
    "-Wno-unknown-pragmas",
    "-Wno-pragma-once-outside-header",
];

/// No vectors, whose accesses are not called back; sanitizers without their own libraries.
const CHECKED: &[&str] = &[
    "-O1",
    "-w",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-DLILY_CHECKED",
    "-fsanitize-coverage=func,trace-pc-guard,trace-loads,trace-stores",
    "-fsanitize=alignment,bounds,shift-exponent,integer-divide-by-zero,float-cast-overflow",
];

/// Instructions of this machine that kernels use much; they change no result. Without libraries, nothing may be
/// left to the compiler's own: on AArch64 atomic operations are.
fn instructions() -> &'static [&'static str] {
    if cfg!(target_arch = "aarch64") {
        return &["-mno-outline-atomics"];
    }
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
        return &["-mavx2", "-mfma"];
    }
    &[]
}

/// A clang with the folder of files made by it.
pub(crate) struct Toolchain {
    clang: PathBuf,
    folder: PathBuf,
    pub runtime: Runtime,
}

/// The toolchain of this process, with its runtime loaded.
pub(crate) fn toolchain() -> Result<&'static Toolchain, CompileError> {
    static TOOLCHAIN: OnceLock<Result<Toolchain, CompileError>> = OnceLock::new();
    TOOLCHAIN.get_or_init(Toolchain::new).as_ref().map_err(Clone::clone)
}

impl Toolchain {
    fn new() -> Result<Self, CompileError> {
        if cfg!(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))
        {
            return Err(CompileError::Clang("this is no Linux on x86-64 or AArch64".into()));
        }
        let (clang, version) = find_clang()?;
        let files = || RUNTIME.iter().chain(prelude::CPU);
        let parts = files().flat_map(|(name, text)| [*name, *text]);
        let flags = [SHARED, KERNEL, FAST, CHECKED, instructions()].concat();
        let folder = cache::cache_folder().join(cache::key(parts.chain(flags).chain([&*version])));
        for (set, files) in [("runtime", RUNTIME), ("prelude", prelude::CPU)] {
            for (name, text) in files {
                let path = folder.join(set).join(name);
                if !path.exists() {
                    cache::write(&path, text).map_err(|e| at(&path, e))?;
                }
            }
        }
        let library = folder.join("runtime.so");
        if !library.exists() {
            let mut command = Command::new(&clang);
            command.args(SHARED).args(["-std=c++17", "-O2", "-I"]).arg(folder.join("prelude"));
            let sources = RUNTIME.iter().filter(|(name, _)| name.ends_with(".cpp"));
            command.args(sources.map(|(name, _)| folder.join("runtime").join(name)));
            command.args(["-lpthread", "-ldl"]);
            run(&mut command, &library)?.map_err(CompileError::Clang)?;
        }
        let runtime = Runtime::load(&library).map_err(|e| at(&library, e))?;
        Ok(Self { clang, folder, runtime })
    }

    fn kernel(
        &'static self,
        translation: &Translation,
        build: Build,
    ) -> Result<Kernel, CompileError> {
        let name = format!("{}-{}", translation.function, cache::key([&*translation.text]));
        let suffix = match build {
            Build::Fast => "fast",
            Build::Checked => "checked",
        };
        let library = self.folder.join(format!("{name}.{suffix}.so"));
        if !library.exists() {
            let text = self.folder.join(format!("{name}.cpp"));
            cache::write(&text, &translation.text).map_err(|e| at(&text, e))?;
            // Template arguments of class type, which tensor operations have, are C++20.
            let standard = if translation.tensor_operations { "-std=c++20" } else { "-std=c++14" };
            let mut command = Command::new(&self.clang);
            command.args(SHARED).args(KERNEL).args(instructions()).arg(standard);
            command.args(if build == Build::Fast { FAST } else { CHECKED });
            command.arg("-isystem").arg(self.folder.join("prelude")).arg(&text);
            run(&mut command, &library)?.map_err(CompileError::Text)?;
        }
        Kernel::load(&self.runtime, &library, translation, build).map_err(|e| at(&library, e))
    }
}

fn at(path: &Path, error: impl ToString) -> CompileError {
    CompileError::Cache { path: path.to_path_buf(), reason: error.to_string() }
}

/// The first clang that runs, and its version.
fn find_clang() -> Result<(PathBuf, String), CompileError> {
    let named = std::env::var_os("LILY_CLANG").filter(|v| !v.is_empty()).map(PathBuf::from);
    let candidates = match named {
        Some(path) => vec![path],
        None => ["clang++-19", "clang++-20", "clang++-21", "clang++"].map(PathBuf::from).to_vec(),
    };
    for clang in &candidates {
        if let Ok(output) = Command::new(clang).arg("--version").output()
            && output.status.success()
        {
            return Ok((clang.clone(), String::from_utf8_lossy(&output.stdout).into_owned()));
        }
    }
    let names: Vec<_> = candidates.iter().map(|c| c.display().to_string()).collect();
    Err(CompileError::Clang(format!("none of {} runs", names.join(", "))))
}

/// Runs clang for an output that appears at once; the inner error is what clang says.
fn run(command: &mut Command, output: &Path) -> Result<Result<(), String>, CompileError> {
    let part = cache::temporary(output);
    let result = command.arg("-o").arg(&part).output();
    let result = result.map_err(|e: io::Error| CompileError::Clang(e.to_string()))?;
    if !result.status.success() {
        return Ok(Err(messages(&String::from_utf8_lossy(&result.stderr))));
    }
    std::fs::rename(&part, output).map_err(|e| at(output, e))?;
    Ok(Ok(()))
}

/// The first errors of a compiler's output, with the places they give.
fn messages(stderr: &str) -> String {
    let errors: Vec<_> = stderr.lines().filter(|line| line.contains("error:")).take(5).collect();
    let text = if errors.is_empty() { stderr.trim() } else { &errors.join("\n") };
    text.to_string()
}

type Loaded = Mutex<HashMap<(String, Build), Result<Arc<Kernel>, CompileError>>>;

/// Compiles a kernel, or takes it from the cache; what failed once fails again.
pub fn compile(source: &Source, build: Build) -> Result<Arc<Kernel>, CompileError> {
    static LOADED: OnceLock<Loaded> = OnceLock::new();
    let loaded = LOADED.get_or_init(Loaded::default);
    let translation = translate(source, Dialect::Cpu)?;
    let key = (translation.text.clone(), build);
    if let Some(known) = loaded.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return known.clone();
    }
    let result = toolchain()?.kernel(&translation, build).map(Arc::new);
    let mut loaded = loaded.lock().unwrap_or_else(PoisonError::into_inner);
    loaded.entry(key).or_insert(result).clone()
}
