//! Golden models on the GPU of a Mac; reported as skipped where the GPU cannot run the kernels.

#![cfg(target_os = "macos")]

use std::sync::OnceLock;

use lily_kernels::conformance::{Bar, cases_in, check, smallest_of_each_kind};
use lily_kernels::table;
use lily_metal::encoder::DecodeEncoding;
use lily_metal::host::{AppleHost, AppleOptions};
use lily_metal::{Host as _, MetalDevice, MetalOptions};
use lily_plan::Device;
use lily_tests::{GOLDEN, gpu, pair};

fn open() -> MetalDevice<AppleHost> {
    let host = AppleHost::open(AppleOptions::default()).expect("the GPU opens again");
    MetalDevice::new(host, MetalOptions::default())
}

fn metal() -> Box<dyn Device> {
    Box::new(open())
}

/// Whether there is a GPU that runs the kernels; says why not. Apple silicon is expected to. The GPU of a virtual machine
/// is asked: every kernel's smallest cases have to be right.
fn available() -> bool {
    static AVAILABLE: OnceLock<Result<(), String>> = OnceLock::new();
    let probed = AVAILABLE.get_or_init(|| {
        let host = AppleHost::open(AppleOptions::default()).map_err(|error| error.to_string())?;
        println!("on {}", host.description());
        if host.system().is_apple_silicon() {
            return Ok(());
        }
        let mut device = MetalDevice::new(host, MetalOptions::default());
        let cases = smallest_of_each_kind(cases_in(Bar::Bf16.precision(), table::cases));
        for case in &cases {
            let checked = check(&mut device, case, Bar::Bf16);
            checked.map_err(|reason| format!("{} on this GPU: {reason}", case.name))?;
        }
        Ok(())
    });
    if let Err(reason) = probed {
        println!("skipped: {reason}");
    }
    probed.is_ok()
}

/// As on the MSL test device.
const LAUNCH: f32 = 1e-2;

#[test]
fn every_launch_agrees_with_the_interpreter() {
    if available() {
        for name in ["generic", "odd"] {
            pair::agrees_at_every_launch(name, metal(), LAUNCH);
        }
    }
}

#[test]
fn golden_logits_stay_within_the_bar() {
    if available() {
        for name in GOLDEN {
            gpu::golden_logits(name, &metal);
        }
    }
}

#[test]
fn greedy_runs_are_repeatable_bit_for_bit() {
    if available() {
        for name in ["heads", "odd"] {
            gpu::greedy_is_repeatable(name, &metal, &metal);
        }
    }
}

/// Nothing of the default hangs on it: what fails here is the option `--encode-once`.
#[test]
fn decode_steps_encoded_once_give_the_same_bits() {
    let once = || -> Box<dyn Device> {
        let host = AppleHost::open(AppleOptions::default()).expect("the GPU opens again");
        let encoding = DecodeEncoding::Once;
        Box::new(MetalDevice::new(host, MetalOptions { encoding, ..MetalOptions::default() }))
    };
    if available() {
        for name in ["heads", "odd"] {
            gpu::greedy_gives_the_same_bits(name, &[&metal, &once]);
        }
    }
}

#[test]
fn steps_taken_back_leave_the_state_of_a_cold_run() {
    if available() {
        gpu::step_back_equals_a_cold_run("generic", &metal);
    }
}

#[test]
fn kept_states_give_the_bits_of_the_first_run() {
    if available() {
        gpu::kept_states_give_the_bits_of_the_first_run("odd", &metal);
    }
}

#[test]
fn halted_sequences_are_left_alone() {
    if available() {
        gpu::halted_steps_change_nothing("generic", metal());
    }
}

#[test]
fn layers_stay_within_a_percent_of_the_reference() {
    if available() {
        for name in ["heads", "odd"] {
            gpu::layers_stay_within_a_percent(name, metal());
        }
    }
}
