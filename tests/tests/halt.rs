//! Halted sequences, random orders, and launches in the wrong order, on plans without an engine.

use std::sync::Arc;

use lily_cpu::{CpuDevice, CpuOptions, Numerics};
use lily_model::plan::Choice;
use lily_plan::{BufferKind, Device, Fusions, Plan, Precision, control};
use lily_tests::rig::{Machine, Rig, all_fusions};
use lily_tests::{Golden, cpu, interpreter};

/// Decode plans of every combination of fusions, near the start and past the first bucket of
/// lengths, with every choice.
fn decode_plans(rig: &Rig) -> Vec<Arc<Plan>> {
    let mut plans = Vec::new();
    for fusions in all_fusions() {
        for choice in [Choice::Device, Choice::Draw, Choice::Host] {
            for position in [20, 2000] {
                plans.push(rig.decode(position, choice, fusions));
            }
        }
    }
    plans
}

fn devices() -> Vec<(&'static str, Precision, Box<dyn Device>)> {
    vec![
        ("exact", cpu(Numerics::Exact).precision(), cpu(Numerics::Exact)),
        ("int8", cpu(Numerics::Int8).precision(), cpu(Numerics::Int8)),
        ("interpreter", Precision::BF16, interpreter(Precision::BF16, true)),
    ]
}

fn halt(machine: &mut Machine<'_>, sequence: usize, word: i32) {
    machine.set_row(sequence, |row| row[control::HALT] = word);
}

#[test]
fn steps_of_a_halted_sequence_change_no_byte() {
    let golden = Golden::open("generic");
    for (name, precision, device) in devices() {
        let rig = Rig::new(&golden, precision, 1, 16);
        let mut machine = rig.start(device);
        machine.prefill(0, &golden.prompts.prompts[1]);
        for word in [control::ENDED, control::NON_FINITE] {
            halt(&mut machine, 0, word);
            let before = machine.all_bytes();
            for plan in decode_plans(&rig) {
                let id = machine.compile(&plan);
                (0..3).for_each(|_| machine.run(id));
            }
            for ((_, buffer), (before, after)) in
                rig.buffers.table.iter().zip(before.iter().zip(machine.all_bytes()))
            {
                assert!(*before == after, "{name}, halt {word}: {} has changed", buffer.name);
            }
        }
    }
}

/// Row `sequence` of a buffer with one row for each of three sequences.
fn row_of(bytes: &[u8], sequence: usize) -> &[u8] {
    &bytes[sequence * bytes.len() / 3..(sequence + 1) * bytes.len() / 3]
}

#[test]
fn a_halted_sequence_keeps_its_state_while_others_decode() {
    let golden = Golden::open("generic");
    for (name, precision, device) in devices() {
        let rig = Rig::new(&golden, precision, 3, 16);
        let mut machine = rig.start(device);
        for sequence in 0..3 {
            machine.prefill(sequence, &golden.prompts.prompts[1]);
        }
        let started = machine.all_bytes();
        for (i, plan) in decode_plans(&rig).into_iter().enumerate() {
            let sleeper = i % 3;
            machine.set_all_bytes(&started);
            halt(&mut machine, sleeper, control::ENDED);
            let before = machine.all_bytes();
            let id = machine.compile(&plan);
            machine.run(id);
            let after = machine.all_bytes();
            let mut states = 0;
            for (id, buffer) in rig.buffers.table.iter() {
                let (before, after) = (&before[id.index()], &after[id.index()]);
                let kept = |s| row_of(before, s) == row_of(after, s);
                if matches!(buffer.kind, BufferKind::State | BufferKind::Control)
                    && buffer.name != "prompt"
                {
                    assert!(kept(sleeper), "{name}: {} of the halted sequence", buffer.name);
                }
                if buffer.kind == BufferKind::State {
                    states += 1;
                    let awake = (0..3).filter(|&s| s != sleeper);
                    assert_eq!(awake.filter(|&s| kept(s)).count(), 0, "{name}: {}", buffer.name);
                }
            }
            assert!(states >= 8, "{states} state buffers");
        }
    }
}

/// Logits of a chunk and of every step after it, and the chosen ids.
fn bits(golden: &Golden, options: CpuOptions, fusions: Fusions) -> (Vec<u8>, Vec<u32>) {
    let device = CpuDevice::new(options);
    assert_eq!(device.threads(), options.threads);
    let rig = Rig::new(golden, device.precision(), 2, 40);
    let mut machine = rig.start(Box::new(device));
    machine.prefill(0, &golden.prompts.prompts[2]);
    machine.prefill(1, &golden.prompts.prompts[1]);
    let mut logits = machine.bytes(rig.buffers.scratch.logits);
    let plan = machine.compile(&rig.decode(70, Choice::Device, fusions));
    for _ in 1..5 {
        machine.run(plan);
        logits.extend(machine.bytes(rig.buffers.scratch.logits));
    }
    let mut ids = machine.output(0, 5);
    ids.extend(machine.output(1, 5));
    (logits, ids)
}

#[test]
fn random_orders_and_thread_counts_give_the_same_bits() {
    let fused = Fusions { topk: true, prepare: true, short: true };
    for name in ["generic", "odd"] {
        let golden = Golden::open(name);
        for numerics in [Numerics::Exact, Numerics::Int8] {
            for fusions in [Fusions::default(), fused] {
                let run = |threads, shuffle| {
                    bits(
                        &golden,
                        CpuOptions { numerics, threads, shuffle, ..CpuOptions::default() },
                        fusions,
                    )
                };
                let plain = run(1, None);
                if numerics == Numerics::Exact {
                    assert_eq!(plain.1[..5], golden.prompts.greedy[2][..5]);
                    assert_eq!(plain.1[5..], golden.prompts.greedy[1][..5]);
                }
                for (threads, shuffle) in
                    [(2, None), (3, None), (1, Some(1)), (2, Some(2)), (3, Some(3)), (3, Some(4))]
                {
                    let other = run(threads, shuffle);
                    let label = format!("{name}, {numerics:?}, {threads}, {shuffle:?}");
                    assert!(plain.0 == other.0, "{label}: the logits differ");
                    assert_eq!(plain.1, other.1, "{label}");
                }
            }
        }
    }
}

/// A plan with one pair of neighbours exchanged gives other states or logits: no launch is there for
/// nothing, and no order is accidental.
#[test]
fn every_exchange_of_neighbours_changes_a_state_or_the_logits() {
    let golden = Golden::open("mixed");
    let rig = Rig::new(&golden, Precision::EXACT, 1, 16);
    for fusions in [Fusions::default(), Fusions { topk: true, prepare: true, short: true }] {
        let mut machine = rig.start(interpreter(Precision::EXACT, false));
        machine.prefill(0, &golden.prompts.prompts[1]);
        let plan = rig.decode(20, Choice::Device, fusions);
        let id = machine.compile(&plan);
        machine.run(id);
        let started = machine.all_bytes();
        let mut outcome = |plan: &Arc<Plan>| {
            machine.set_all_bytes(&started);
            let id = machine.compile(plan);
            machine.run(id);
            let mut all = vec![machine.bytes(rig.buffers.scratch.logits)];
            for (id, buffer) in rig.buffers.table.iter() {
                if matches!(buffer.kind, BufferKind::State | BufferKind::Control) {
                    all.push(machine.bytes(id));
                }
            }
            all
        };
        let right = outcome(&plan);
        assert!(right == outcome(&plan), "a step repeats");
        for first in 0..plan.launches().len() - 1 {
            let mut launches = plan.launches().to_vec();
            launches.swap(first, first + 1);
            let labels = [first, first + 1].map(|i| plan.launches()[i].label());
            let swapped = Plan::new(plan.step(), plan.buffers().clone(), launches);
            let swapped = Arc::new(swapped.expect("ranges do not depend on the order"));
            assert!(outcome(&swapped) != right, "{} before {}", labels[1], labels[0]);
        }
    }
}
