//! Whether `--device auto` takes an NVIDIA GPU.
//!
//! The rule is two functions of plain facts: [`is_worth_a_look`], and [`Unfit::reason`] for what was found then.
//! The rest gathers the facts, the cheap ones first. None of them ends the program, and what goes wrong
//! afterwards, while the model starts on the GPU, does not either ([`start`](super::start)).

use anyhow::{Error, Result};
use lily_cuda::{CudaDevice, CudaError};
use lily_kernels::gpu::{MatrixFormat, weight_bytes};
use lily_model::engine::{check_memory, matrix_bytes};
use lily_plan::Weight;

use super::{Opened, Task, cuda, opened_cuda};
use crate::args::ModelArgs;
use crate::functions::Functions;
use crate::output::{note, sentence};

/// Bytes of weights from which on a GPU is looked for. With less the processor has answered before a driver is
/// ready, kernels are compiled and weights are copied.
const WORTH_A_GPU: u64 = 1_000_000_000;

/// Whether to look for a GPU: the weights are of real size, and no option asks for what only the processor
/// has. If not, nothing is said: whoever gives such an option knows, and a small model loses nothing.
fn is_worth_a_look(args: &ModelArgs, weights: u64) -> bool {
    weights >= WORTH_A_GPU && !args.is_for_processor()
}

/// Why the first NVIDIA GPU is not taken.
#[derive(Debug)]
enum Unfit {
    /// It was not opened: there is no driver, no GPU, one that is too old, or the driver fails.
    Unopened(CudaError),
    /// NVRTC is not there, and a kernel of the model is not in the cache.
    NoKernels,
    /// Weights and session do not fit into what it has free, or the plans do not suit it.
    Unusable(Error),
}

impl Unfit {
    /// What is to be said about it: nothing where there is no GPU that could be missed.
    fn reason(&self) -> Option<String> {
        match self {
            Self::Unopened(CudaError::NoDriver | CudaError::NoGpu { .. }) => None,
            Self::Unopened(CudaError::TooOld { name, found }) => {
                Some(format!("{name} has compute capability {found}, need at least 8.0 (Ampere)"))
            }
            Self::Unopened(error) => Some(error.to_string()),
            Self::NoKernels => Some(
                "its kernels are compiled once by NVRTC, which was not found; install the Python package \
                 nvidia-cuda-nvrtc or the CUDA toolkit and name the library with LILY_NVRTC, or run `lily \
                 kernels import`"
                    .into(),
            ),
            Self::Unusable(error) => Some(sentence(error)),
        }
    }
}

/// Says in one line why the processor works although there is a GPU.
pub fn note_passed_over(reason: &str) {
    // A compiler's complaint has many lines.
    let reason = reason.lines().next().unwrap_or_default();
    note(format_args!(
        "lily: the processor is used, not the NVIDIA GPU: {reason}; --device cuda shows the whole error, --device \
         cpu says nothing"
    ));
}

/// The first NVIDIA GPU, if a model should run on it. Where there is one that cannot, a line says why.
pub fn nvidia(args: &ModelArgs, task: &Task<'_>) -> Option<Opened> {
    let weights = task.weights.values().map(|weight| weight_bytes(weight) as u64).sum();
    let looked = is_worth_a_look(args, weights).then(|| open_for(args, task))?;
    found(looked)
}

/// The first NVIDIA GPU, if its kernels can be compiled, for whoever has no model.
pub fn any_nvidia() -> Option<CudaDevice> {
    let opened = cuda().map_err(Unfit::Unopened);
    found(opened.and_then(|device| {
        let can_compile = device.compiler().nvrtc_version().is_ok();
        if can_compile { Ok(device) } else { Err(Unfit::NoKernels) }
    }))
}

fn found<T>(looked: Result<T, Unfit>) -> Option<T> {
    looked.inspect_err(|unfit| unfit.reason().iter().for_each(|r| note_passed_over(r))).ok()
}

/// Opens the first GPU and checks that the model has its memory and its kernels. Compiles and allocates nothing.
fn open_for(args: &ModelArgs, task: &Task<'_>) -> Result<Opened, Unfit> {
    let device = cuda().map_err(Unfit::Unopened)?;
    let options = super::options(args, task.options, lily_cuda::CHUNK, super::GPU_STEPS_AHEAD);
    check_memory(&device, task.shape, task.weights, &options)
        .map_err(|error| Unfit::Unusable(error.into()))?;
    match has_kernels(&device, &Task { options, ..*task }).map_err(Unfit::Unusable)? {
        true => Ok(opened_cuda(device)),
        false => Err(Unfit::NoKernels),
    }
}

/// Whether NVRTC is there, or all functions that the model may need are in the cache.
fn has_kernels(device: &CudaDevice, task: &Task<'_>) -> Result<bool> {
    if device.compiler().nvrtc_version().is_ok() {
        return Ok(true);
    }
    // The list of functions is that of prompts and answers.
    if task.options.all_logits {
        return Ok(false);
    }
    let format = |(name, weight): (&String, &Weight)| match weight {
        Weight::Matrix(matrix) => Some((name.clone(), MatrixFormat::of(matrix))),
        Weight::Vector(_) => None,
    };
    let functions = Functions {
        shape: task.shape,
        formats: &task.weights.iter().filter_map(format).collect(),
        matrices: &matrix_bytes(task.weights),
        options: &task.options,
    };
    let architecture = device.architecture();
    Ok(device.compiler().has_all(functions.on(architecture.target())?, &architecture)?)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Command, Program};

    fn args(options: &[&str]) -> ModelArgs {
        let line = [&["lily", "run", "-m", "folder", "hello"], options].concat();
        match Program::try_parse_from(line).expect("it parses").command {
            Command::Run(args) => args.model,
            _ => panic!("it is run"),
        }
    }

    #[test]
    fn a_gpu_is_looked_for_if_the_weights_are_of_real_size_and_no_option_is_for_the_processor() {
        assert!(is_worth_a_look(&args(&[]), WORTH_A_GPU));
        assert!(is_worth_a_look(&args(&["--chunk", "64"]), 19_500_000_000));
        assert!(!is_worth_a_look(&args(&[]), WORTH_A_GPU - 1));
        for option in ["--exact", "--threads=2", "--load=read"] {
            assert!(!is_worth_a_look(&args(&[option]), 19_500_000_000), "{option}");
        }
    }

    #[test]
    fn a_gpu_that_is_there_and_not_taken_has_a_reason_and_one_that_is_not_there_has_none() {
        let old = CudaError::TooOld { name: "Tesla T4".into(), found: "7.5".into() };
        let failed = CudaError::Driver { call: "cuInit".into(), reason: "unknown".into() };
        let room = lily_model::engine::EngineError::WeightMemory { needed: 20, limit: 10 };
        for (unfit, reason) in [
            (Unfit::Unopened(CudaError::NoDriver), None),
            (Unfit::Unopened(CudaError::NoGpu { found: 0, wanted: 0 }), None),
            (Unfit::Unopened(old), Some("Tesla T4 has compute capability 7.5")),
            (Unfit::Unopened(CudaError::OldDriver { found: 11_040 }), Some("CUDA 11.4")),
            (Unfit::Unopened(failed), Some("cuInit failed: unknown")),
            (Unfit::NoKernels, Some("nvidia-cuda-nvrtc")),
            (Unfit::Unusable(room.into()), Some("the weights need 20 bytes")),
        ] {
            let found = unfit.reason();
            assert_eq!(found.is_some(), reason.is_some(), "{unfit:?}");
            assert!(found.is_none_or(|found| found.contains(reason.unwrap_or_default())));
        }
    }
}
