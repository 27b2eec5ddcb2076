//! Every kernel on this Mac's GPU against its reference; reported as skipped where there is none.

#![cfg(target_os = "macos")]

use lily_kernels::conformance::{
    Bar, Case, cases_at, cases_in, failures_on, named_cases, real_shape,
};
use lily_metal::host::{AppleHost, AppleOptions};
use lily_metal::{Host as _, MetalDevice, MetalOptions};

/// Checks cases on one device, so that a kernel is compiled once.
fn check_all(cases: Vec<Case>) {
    let host = match AppleHost::open(AppleOptions::default()) {
        Ok(host) => host,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let is_real = host.system().is_apple_silicon();
    println!("{} cases on {}, {:?}", cases.len(), host.description(), host.system());
    let mut device = MetalDevice::new(host, MetalOptions::default());
    let failures = failures_on(&mut device, &cases, Bar::Bf16);
    println!("{:?}", device.host().compile_times());
    if !is_real && !failures.is_empty() {
        // A virtual machine's GPU lacks what every Apple silicon GPU has.
        println!("skipped: {} of {} cases fail on this GPU", failures.len(), cases.len());
        return;
    }
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_kernel_agrees_with_its_reference() {
    check_all(cases_in(Bar::Bf16.precision(), named_cases));
}

/// The references are plain loops over 25 million weights: minutes.
#[test]
#[ignore = "takes minutes, most of them for the references: scripts/check-full long"]
fn every_kernel_agrees_with_its_reference_at_the_real_models_shapes() {
    let build = || cases_at(vec![real_shape()], named_cases);
    check_all(cases_in(Bar::Bf16.precision(), build));
}
