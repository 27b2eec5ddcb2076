//! Every Metal text against its kernel's reference, on the MSL test device.
//!
//! `LILY_KERNELS=topk,head` runs these kernels alone. Kernels without a Metal text are listed.

#![cfg(target_os = "linux")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use lily_kernels::ModelShape;
use lily_kernels::conformance::{Bar, Case, cases_at, cases_in, check, real_shape, run};
use lily_kernels::table::{self, KERNELS, Kernel};
use lily_msl_test::{MslOptions, MslTestDevice};

#[test]
fn every_text_agrees_with_its_reference_in_both_orders() {
    check_all(false, Vec::new());
}

#[test]
#[ignore = "takes many minutes: scripts/check-full long"]
fn every_text_agrees_with_its_reference_at_the_real_models_shapes() {
    check_all(false, vec![real_shape()]);
}

/// A race is found in any order: the cases take turns.
#[test]
fn every_text_passes_the_checks_of_memory_and_races() {
    check_all(true, Vec::new());
}

/// Failures of a kernel that are written out.
const SHOWN: usize = 4;

/// Cases at these dimensions, or at the small ones if there are none.
fn check_all(checked: bool, shapes: Vec<ModelShape>) {
    let filter = std::env::var("LILY_KERNELS").unwrap_or_default();
    let named = |kernel: &str| filter.is_empty() || filter.split(',').any(|name| name == kernel);
    let (with_text, without): (Vec<_>, Vec<_>) =
        KERNELS.iter().filter(|k| named(k.name)).partition(|k| k.gpu.is_some());
    assert!(!with_text.is_empty(), "no kernel with a Metal text is named {filter}");
    let mut failures = Vec::new();
    for kernel in with_text {
        failures.extend(check_kernel(kernel, checked, &shapes));
    }
    for kernel in without {
        println!("{} has no Metal text", kernel.name);
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

fn check_kernel(kernel: &Kernel, checked: bool, shapes: &[ModelShape]) -> Vec<String> {
    let build = if checked { "checked" } else { "fast" };
    let start = Instant::now();
    let build_cases = || cases_at(shapes.to_vec(), || table::cases_of(|k| k.name == kernel.name));
    let cases = cases_in(Bar::Bf16.precision(), build_cases);
    let failures = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(index) else { return };
            let turn = [index % 2 == 1];
            for &reverse in if checked { &turn[..] } else { &[false, true] } {
                if let Err(reason) = check_case(case, checked, reverse) {
                    let order = if reverse { "reverse" } else { "forward" };
                    let failure = format!("{} ({build}, {order}): {reason}", case.name);
                    failures.lock().expect("no thread panics").push(failure);
                }
            }
        }
    };
    // The other half of the processors runs the other build.
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().div_ceil(2));
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let failures = failures.into_inner().expect("no thread panics");
    let (name, seconds) = (kernel.name, start.elapsed().as_secs_f64());
    println!("{build} {name}: {} cases, {} failures, {seconds:.1} s", cases.len(), failures.len());
    for failure in failures.iter().take(SHOWN) {
        println!("  {failure}");
    }
    failures
}

/// The checked build is for the checks alone: its results are those of the fast one.
fn check_case(case: &Case, checked: bool, reverse: bool) -> Result<(), String> {
    let options = MslOptions { checked, reverse, ..MslOptions::default() };
    let device = &mut MslTestDevice::new(options);
    if checked {
        return run(device, case, &case.contents).map(drop).map_err(|e| e.to_string());
    }
    check(device, case, Bar::Bf16)
}
