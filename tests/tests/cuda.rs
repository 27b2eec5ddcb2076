//! Golden models on an NVIDIA GPU; reported as skipped where there is none.

use lily_cuda::compiler::Compiler;
use lily_cuda::{CudaDevice, CudaError, CudaOptions};
use lily_plan::Device;
use lily_tests::{GOLDEN, gpu, pair};

fn options() -> CudaOptions {
    CudaOptions {
        nvrtc: std::env::var_os("LILY_NVRTC").map(Into::into),
        cache: Compiler::default_cache(),
        ..CudaOptions::default()
    }
}

fn cuda() -> Box<dyn Device> {
    Box::new(CudaDevice::new(options()).expect("the GPU opens again"))
}

/// Whether there is a GPU; says why not.
fn available() -> bool {
    match CudaDevice::new(options()) {
        Ok(device) => {
            println!("on {}", device.info().name);
            true
        }
        Err(error @ (CudaError::NoDriver | CudaError::NoGpu { .. })) => {
            println!("skipped: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// As on the MSL test device.
const LAUNCH: f32 = 1e-2;

#[test]
fn every_launch_agrees_with_the_interpreter() {
    if available() {
        for name in ["generic", "odd"] {
            pair::agrees_at_every_launch(name, cuda(), LAUNCH);
        }
    }
}

#[test]
fn golden_logits_stay_within_the_bar() {
    if available() {
        for name in GOLDEN {
            gpu::golden_logits(name, &cuda);
        }
    }
}

#[test]
fn greedy_runs_are_repeatable_bit_for_bit() {
    if available() {
        for name in ["heads", "odd"] {
            gpu::greedy_is_repeatable(name, &cuda, &cuda);
        }
    }
}

#[test]
fn sampled_runs_are_those_of_the_host_and_repeatable() {
    if available() {
        for name in ["heads", "odd"] {
            gpu::draws_what_the_host_draws(name, &cuda, &cuda);
        }
    }
}

#[test]
fn steps_taken_back_leave_the_state_of_a_cold_run() {
    if available() {
        gpu::step_back_equals_a_cold_run("generic", &cuda);
    }
}

#[test]
fn kept_states_give_the_bits_of_the_first_run() {
    if available() {
        for name in ["heads", "odd"] {
            gpu::kept_states_give_the_bits_of_the_first_run(name, &cuda);
        }
    }
}

#[test]
fn halted_sequences_are_left_alone() {
    if available() {
        gpu::halted_steps_change_nothing("generic", cuda());
    }
}

#[test]
fn layers_stay_within_a_percent_of_the_reference() {
    if available() {
        for name in ["heads", "odd"] {
            gpu::layers_stay_within_a_percent(name, cuda());
        }
    }
}
