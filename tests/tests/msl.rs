//! Golden models on the MSL test device: the Metal texts, run on this machine's processor.

#![cfg(target_os = "linux")]

use lily_kernels::gpu::Products;
use lily_msl_test::{MslOptions, MslTestDevice};
use lily_plan::Device;
use lily_tests::{GOLDEN, gpu, pair};

fn msl() -> Box<dyn Device> {
    Box::new(MslTestDevice::new(MslOptions { workers: 2, ..MslOptions::default() }))
}

fn shuffled() -> Box<dyn Device> {
    let options = MslOptions { reverse: true, shuffle: Some(5), ..MslOptions::default() };
    Box::new(MslTestDevice::new(options))
}

/// With Metal 4 tensor operations.
fn tensors() -> Box<dyn Device> {
    let products = Products::TensorOperations;
    Box::new(MslTestDevice::new(MslOptions { products, workers: 2, ..MslOptions::default() }))
}

/// Largest relative difference of a buffer that one launch writes, given the same inputs: its own rounding
/// to bfloat16, and another order of sums.
const LAUNCH: f32 = 1e-2;

#[test]
fn every_launch_agrees_with_the_interpreter() {
    for name in ["generic", "odd"] {
        pair::agrees_at_every_launch(name, msl(), LAUNCH);
    }
}

#[test]
fn golden_logits_stay_within_the_bar() {
    for name in GOLDEN {
        gpu::golden_logits(name, &msl);
    }
}

#[test]
fn golden_logits_stay_within_the_bar_with_tensor_operations() {
    gpu::golden_logits("heads", &tensors);
}

#[test]
fn greedy_runs_are_repeatable_bit_for_bit() {
    for name in ["heads", "odd"] {
        gpu::greedy_is_repeatable(name, &msl, &shuffled);
    }
}

#[test]
fn sampled_runs_are_those_of_the_host_and_repeatable() {
    for name in ["heads", "odd"] {
        gpu::draws_what_the_host_draws(name, &msl, &shuffled);
    }
}

#[test]
fn steps_taken_back_leave_the_state_of_a_cold_run() {
    gpu::step_back_equals_a_cold_run("generic", &msl);
}

#[test]
fn kept_states_give_the_bits_of_the_first_run() {
    gpu::kept_states_give_the_bits_of_the_first_run("odd", &msl);
}

#[test]
fn halted_sequences_are_left_alone() {
    gpu::halted_steps_change_nothing("generic", msl());
}

#[test]
fn layers_stay_within_a_percent_of_the_reference() {
    for name in ["heads", "odd"] {
        gpu::layers_stay_within_a_percent(name, msl());
    }
}
