//! Whole plans on the CPU device and the interpreter, launch by launch, all buffers compared.

use lily_cpu::Numerics;
use lily_model::plan::{Choice, PrefillEnd};
use lily_plan::{Fusions, control};
use lily_tests::pair::{Pair, agrees_at_every_launch};
use lily_tests::rig::Rig;
use lily_tests::{Golden, cpu};

/// Largest relative difference of a buffer in f32.
const EXACT: f32 = 2e-5;
/// The same with 8-bit inputs.
const INT8: f32 = 3e-2;

#[test]
fn the_cpu_agrees_with_the_interpreter_at_every_launch_in_f32() {
    agrees_at_every_launch("generic", cpu(Numerics::Exact), EXACT);
    agrees_at_every_launch("odd", cpu(Numerics::Exact), EXACT);
}

#[test]
fn the_cpu_agrees_with_the_interpreter_at_every_launch_with_8_bit_inputs() {
    agrees_at_every_launch("generic", cpu(Numerics::Int8), INT8);
    agrees_at_every_launch("odd", cpu(Numerics::Int8), INT8);
}

/// The comparison must be able to fail: here the devices compute with different inputs.
#[test]
fn devices_with_different_numbers_are_told_apart() {
    let golden = Golden::open("generic");
    let rig = Rig::new(&golden, cpu(Numerics::Exact).precision(), 1, 40);
    let mut pair = Pair::new(&rig, "generic, cpu", cpu(Numerics::Exact), EXACT);
    pair.device = rig.start(cpu(Numerics::Int8));
    pair.on_both(|machine| machine.start_chunk(0, &golden.prompts.prompts[1]));
    let reason = pair.run(&rig.prefill(40, 0, PrefillEnd::More), "prefill").unwrap_err();
    assert!(reason.starts_with("generic, cpu, prefill, gdn_in.0: "), "{reason}");
    assert!(reason.contains("relative rms"), "{reason}");
    let plan = rig.decode(0, Choice::Device, Fusions::default());
    pair.on_both(|machine| machine.set_row(0, |row| row[control::HALT] = 0));
    pair.run(&plan, "decode").unwrap_err();
}
