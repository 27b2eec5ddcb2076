//! Every Metal text against its kernel's reference, on the MSL test device.
//!
//! `LILY_KERNELS=topk,head` runs these kernels alone. Kernels without a Metal text are listed.

#![cfg(target_os = "linux")]

use std::time::Instant;

use lily_kernels::conformance::{Bar, cases_in, check, run};
use lily_kernels::table::{self, KERNELS, Kernel};
use lily_msl_test::{MslOptions, MslTestDevice};

#[test]
fn every_text_agrees_with_its_reference_in_both_orders() {
    check_all(false);
}

/// A race is found in any order: the cases take turns.
#[test]
fn every_text_passes_the_checks_of_memory_and_races() {
    check_all(true);
}

/// Failures of a kernel that are written out.
const SHOWN: usize = 4;

fn check_all(checked: bool) {
    let filter = std::env::var("LILY_KERNELS").unwrap_or_default();
    let named = |kernel: &str| filter.is_empty() || filter.split(',').any(|name| name == kernel);
    let (with_text, without): (Vec<_>, Vec<_>) =
        KERNELS.iter().filter(|k| named(k.name)).partition(|k| k.gpu.is_some());
    assert!(!with_text.is_empty(), "no kernel with a Metal text is named {filter}");
    let mut failures = Vec::new();
    for kernel in with_text {
        failures.extend(check_kernel(kernel, checked));
    }
    for kernel in without {
        println!("{} has no Metal text", kernel.name);
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

fn check_kernel(kernel: &Kernel, checked: bool) -> Vec<String> {
    let build = if checked { "checked" } else { "fast" };
    let start = Instant::now();
    let mut failures = Vec::new();
    let build_cases = || table::cases_of(|k| k.name == kernel.name);
    let cases = cases_in(Bar::Bf16.precision(), build_cases);
    for (index, case) in cases.iter().enumerate() {
        let turn = [index % 2 == 1];
        let orders: &[bool] = if checked { &turn } else { &[false, true] };
        for &reverse in orders {
            let options = MslOptions { checked, reverse, ..MslOptions::default() };
            let device = &mut MslTestDevice::new(options);
            // The checked build is for the checks: what it computes is the same text's results.
            let result = if checked {
                run(device, case, &case.contents).map(drop).map_err(|e| e.to_string())
            } else {
                check(device, case, Bar::Bf16)
            };
            if let Err(reason) = result {
                let order = if reverse { "reverse" } else { "forward" };
                failures.push(format!("{} ({build}, {order}): {reason}", case.name));
            }
        }
    }
    let (name, seconds) = (kernel.name, start.elapsed().as_secs_f64());
    println!("{build} {name}: {} cases, {} failures, {seconds:.1} s", cases.len(), failures.len());
    for failure in failures.iter().take(SHOWN) {
        println!("  {failure}");
    }
    failures
}
