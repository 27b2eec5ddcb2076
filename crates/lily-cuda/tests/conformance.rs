//! Every kernel on an NVIDIA GPU against its reference; reported as skipped where there is none.
//!
//! `LILY_KERNELS=topk,head` runs these kernels alone.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use lily_cuda::compiler::{Architecture, Compiler};
use lily_cuda::{CudaDevice, CudaError, CudaOptions};
use lily_kernels::ModelShape;
use lily_kernels::conformance::{
    Bar, Case, cases_at, cases_in, chosen_cases, failures_on, named_cases, named_kernels,
    random_cases, real_shape, smallest_of_each_kind,
};
use lily_kernels::gpu::{MatrixFormat, Source, Target};
use lily_kernels::table;
use lily_plan::{Precision, Weight};

/// Seeds of random dimensions.
const SEEDS: usize = 64;

fn nvrtc() -> Option<PathBuf> {
    std::env::var_os("LILY_NVRTC").map(Into::into)
}

/// Checks cases on one device, so that a kernel is compiled once.
fn check_all(build: impl FnOnce() -> Vec<Case>) {
    let cache = Compiler::default_cache();
    let options = CudaOptions { nvrtc: nvrtc(), cache: cache.clone(), ..CudaOptions::default() };
    let mut device = match CudaDevice::new(options) {
        Ok(device) => device,
        Err(error @ (CudaError::NoDriver | CudaError::NoGpu { .. })) => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let cases = build();
    println!("{} cases on {}", cases.len(), device.info().name);
    if cache.is_some() {
        let (major, minor) = device.info().capability;
        compile(&cases, &Architecture::of(major, minor), &Compiler::new(nvrtc(), cache));
    }
    let failures = failures_on(&mut device, &cases, Bar::Bf16);
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
}

/// Compiles what the cases need on all processors, into the cache.
fn compile(cases: &[Case], architecture: &Architecture, compiler: &Compiler) {
    let sources = sources(cases, architecture.target());
    let wanted: Vec<(&str, &Source)> = sources.iter().map(|(k, source)| (*k, source)).collect();
    compiler.compile_all(&wanted, architecture, &|| ()).expect("every kernel compiles");
    println!("{} functions", wanted.len());
}

fn sources(cases: &[Case], target: Target) -> BTreeSet<(&'static str, Source)> {
    let source = |case: &Case| {
        let launch = &case.plan.launches()[0];
        let format = |b: &lily_plan::Binding| match case
            .weights
            .get(&case.plan.buffers().get(b.buffer).name)
        {
            Some(Weight::Matrix(matrix)) => Some(MatrixFormat::of(matrix)),
            _ => None,
        };
        let formats: Vec<_> = launch.bindings.iter().map(format).collect();
        let (face, entry) = target
            .entry(launch, 0, &formats)
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        (launch.kernel, Source::assemble(launch.kernel, &face, &entry))
    };
    cases.iter().map(source).collect()
}

/// What `make` gives for the numbers up to `count`, on all processors.
fn together(count: usize, make: impl Fn(usize) -> Vec<Case> + Sync) -> Vec<Case> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut own = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return own;
            }
            own.extend(make(index));
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, |n| n.get());
        let workers: Vec<_> = (0..threads.min(count)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|w| w.join().expect("cases are made")).collect()
    })
}

/// The smallest case of each kind, at these dimensions or at the small ones.
fn smallest(shapes: &[ModelShape]) -> Vec<Case> {
    let (precision, kernels) = (Precision::BF16_CHUNKS, named_kernels());
    together(kernels.len(), |index| {
        let own = || table::cases_of(|kernel| kernel.name == kernels[index].name);
        let build = || cases_in(precision, || cases_at(shapes.to_vec(), own));
        chosen_cases(build, smallest_of_each_kind)
    })
}

#[test]
fn every_kernel_agrees_with_its_reference() {
    check_all(|| cases_in(Precision::BF16_CHUNKS, named_cases));
}

/// One case of every third kernel for each seed: what takes time is compiling, since every seed has constants of its own.
#[test]
fn every_kernel_agrees_with_its_reference_at_random_dimensions() {
    let some = |seed| {
        let cases = random_cases(Precision::BF16_CHUNKS, seed as u64).into_iter().enumerate();
        cases.filter(|(index, _)| (index + seed) % 3 == 0).map(|(_, case)| case).collect()
    };
    check_all(|| together(SEEDS, some));
}

/// For tools that slow everything down: `scripts/gpu-check` runs it under compute-sanitizer.
#[test]
fn the_smallest_case_of_each_kind_agrees_with_its_reference() {
    check_all(|| smallest(&[]));
}

#[test]
fn the_smallest_case_of_each_kind_agrees_at_the_real_models_shapes() {
    check_all(|| smallest(&[real_shape()]));
}

/// The references are plain loops over 25 million weights: minutes.
#[test]
#[ignore = "takes minutes, most of them for the references: scripts/check-full long"]
fn every_kernel_agrees_with_its_reference_at_the_real_models_shapes() {
    let build = || cases_at(vec![real_shape()], named_cases);
    check_all(|| cases_in(Precision::BF16_CHUNKS, build));
}

/// Without a GPU: what a test there begins with.
#[test]
fn random_dimensions_are_ones_that_every_kernel_takes() {
    for capability in [(8, 0), (9, 0)] {
        let target = Architecture::of(capability.0, capability.1).target();
        for seed in 0..4 {
            let cases = random_cases(Precision::BF16_CHUNKS, seed);
            assert!(sources(&cases, target).len() > 20, "seed {seed}");
        }
    }
}
