//! `lily kernels`: compiled kernels for machines without NVRTC.

use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use lily_cuda::CudaError;
use lily_cuda::archive::Archive;
use lily_cuda::bandwidth;
use lily_cuda::compiler::Compiler;
use lily_kernels::gpu::Source;
use lily_model::engine::EngineOptions;
use lily_model::plan::{config_matrix_bytes, config_matrix_formats, model_shape};
use serde_json::json;

use crate::args::{ExportArgs, ImportArgs, KernelsArgs, KernelsCommand};
use crate::commands::plan::read_config;
use crate::device;
use crate::functions::{Functions, SESSIONS};
use crate::output::{print, print_json};

/// Runs the command.
pub fn run(args: &KernelsArgs) -> Result<ExitCode> {
    match &args.command {
        KernelsCommand::Export(args) => export(args)?,
        KernelsCommand::Import(args) => import(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn export(args: &ExportArgs) -> Result<()> {
    let config = read_config(&args.model)?;
    let options = EngineOptions {
        context: args.context.unwrap_or(config.max_position_embeddings),
        batch: SESSIONS,
        chunk: args.chunk,
        ..EngineOptions::default()
    };
    let functions = Functions {
        shape: &model_shape(&config),
        formats: &config_matrix_formats(&config),
        matrices: &config_matrix_bytes(&config),
        options: &options,
    };
    let sources = functions.on(args.arch.target())?;
    // `lily bench` holds its figures against it.
    let read = bandwidth::source();
    let own = sources.iter().map(|(kernel, source)| (*kernel, source));
    let wanted: Vec<(&str, &Source)> = own.chain([(bandwidth::KERNEL, &read)]).collect();
    let compiler = Compiler::new(device::nvrtc(), Compiler::default_cache());
    let bar = ProgressBar::new(wanted.len() as u64)
        .with_style(ProgressStyle::with_template("compiling [{bar:30}] {pos} of {len}")?);
    let archive = Archive::compile(&compiler, &wanted, &args.arch, &|| bar.inc(1));
    bar.finish_and_clear();
    let archive = archive.map_err(|error| match error {
        // Its own advice is to export on a machine that has the library.
        CudaError::NoNvrtc { tried } => anyhow!(
            "found no NVRTC library ({tried}), which an export compiles with; install the CUDA toolkit \
             or the Python package nvidia-cuda-nvrtc, and name the library with LILY_NVRTC"
        ),
        error => error.into(),
    })?;
    archive.write(&args.file)?;
    let (kernels, architecture) = (archive.kernels().len(), archive.architecture().name());
    let bytes: usize = archive.kernels().iter().map(|(_, image)| image.len()).sum();
    if args.json {
        return print_json(&json!({
            "file": args.file, "architecture": architecture, "kernels": kernels, "bytes": bytes,
        }));
    }
    print(format_args!(
        "{} holds {kernels} compiled kernels for {architecture}, {bytes} bytes\n",
        args.file.display()
    ))
}

fn import(args: &ImportArgs) -> Result<()> {
    let archive = Archive::read(&args.file)?;
    let cache = Compiler::default_cache().context(
        "found no folder for compiled kernels; name one with XDG_CACHE_HOME, or set HOME",
    )?;
    let new = archive.install(&cache)?;
    let (kernels, architecture) = (archive.kernels().len(), archive.architecture().name());
    if args.json {
        return print_json(&json!({
            "file": args.file, "architecture": architecture, "kernels": kernels, "new": new,
            "cache": cache,
        }));
    }
    print(format_args!(
        "{kernels} compiled kernels for {architecture} lie in {}, {new} of them new\n",
        cache.display()
    ))
}
