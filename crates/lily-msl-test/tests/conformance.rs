//! Every Metal text against its kernel's reference, on the MSL test device.
//!
//! `LILY_KERNELS=topk,head` runs these kernels alone. Kernels without a Metal text are listed.

#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lily_kernels::conformance::{Bar, cases_in, check};
use lily_kernels::table::{self, Kernel};
use lily_msl_test::{MslOptions, MslTestDevice};

#[test]
fn every_text_agrees_with_its_reference_in_both_orders() {
    check_all(false);
}

#[test]
fn every_text_passes_the_checks_of_memory_and_races_in_both_orders() {
    check_all(true);
}

#[derive(Default)]
struct Tally {
    cases: usize,
    time: Duration,
}

fn check_all(checked: bool) {
    let filter = std::env::var("LILY_KERNELS").unwrap_or_default();
    let named = |kernel: &str| filter.is_empty() || filter.split(',').any(|name| name == kernel);
    let wanted = |kernel: &Kernel| kernel.gpu.is_some() && named(kernel.name);
    let build = if checked { "checked" } else { "fast" };
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    let mut failures = Vec::new();
    for case in cases_in(Bar::Bf16.precision(), || table::cases_of(wanted)) {
        let start = Instant::now();
        for reverse in [false, true] {
            let options = MslOptions { checked, reverse, ..MslOptions::default() };
            if let Err(reason) = check(&mut MslTestDevice::new(options), &case, Bar::Bf16) {
                let order = if reverse { "reverse" } else { "forward" };
                failures.push(format!("{} ({build}, {order}): {reason}", case.name));
            }
        }
        let tally = tallies.entry(case.plan.launches()[0].kernel).or_default();
        tally.cases += 1;
        tally.time += start.elapsed();
    }
    for (name, Tally { cases, time }) in &tallies {
        println!("{build} {name}: {cases} cases in {:.1} s", time.as_secs_f64());
    }
    let missing: Vec<_> =
        table::KERNELS.iter().filter(|k| k.gpu.is_none()).map(|k| k.name).collect();
    if !missing.is_empty() {
        println!("without a Metal text: {}", missing.join(", "));
    }
    assert!(!tallies.is_empty(), "no kernel with a Metal text is named {filter}");
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}
