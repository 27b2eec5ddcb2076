//! Every Metal text against its kernel's reference, on the MSL test device.
//!
//! `LILY_KERNELS=topk,head` runs these kernels alone. Kernels without a Metal text are listed.

#![cfg(target_os = "linux")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use lily_kernels::ModelShape;
use lily_kernels::conformance::{
    Bar, Case, cases_at, cases_in, measure_against, real_shape, run, wanted,
};
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

/// A race is found in any order: the cases take turns. So they do at the real model's shapes, where a case takes
/// seconds.
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
            let result = match checked {
                true => check_memory(case, index % 2 == 1),
                false if shapes.is_empty() => check_results(case, &[false, true]),
                false => check_results(case, &[index % 2 == 1]),
            };
            if let Err(reason) = result {
                let failure = format!("{} ({build}), {reason}", case.name);
                failures.lock().expect("no thread panics").push(failure);
            }
        }
    };
    // At the small shapes the other half of the processors runs the other build.
    let share = if shapes.is_empty() { 2 } else { 1 };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().div_ceil(share));
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

fn device(checked: bool, reverse: bool) -> MslTestDevice {
    MslTestDevice::new(MslOptions { checked, reverse, ..MslOptions::default() })
}

fn order(reverse: bool) -> &'static str {
    if reverse { "reverse" } else { "forward" }
}

/// One reference serves all orders.
fn check_results(case: &Case, orders: &[bool]) -> Result<(), String> {
    let want = wanted(case).map_err(|e| format!("reference: {e}"))?;
    for &reverse in orders {
        let result = measure_against(&want, &mut device(false, reverse), case, Bar::Bf16);
        result.map_err(|e| format!("{}: {e}", order(reverse)))?;
    }
    Ok(())
}

/// The checked build is for the checks alone: its results are those of the fast one.
fn check_memory(case: &Case, reverse: bool) -> Result<(), String> {
    let result = run(&mut device(true, reverse), case, &case.contents);
    result.map(drop).map_err(|e| format!("{}: {e}", order(reverse)))
}
