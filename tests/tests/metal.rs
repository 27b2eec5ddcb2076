//! Golden models through the Metal device: its calls are checked one by one, and carried out on the MSL test
//! device.

#![cfg(target_os = "linux")]

use lily_kernels::gpu::Products;
use lily_metal::encoder::check::{Counts, check};
use lily_metal::encoder::{Command, DecodeSubmission, Limits, Pace};
use lily_metal::{Host as _, MetalDevice, MetalOptions};
use lily_model::engine::{EngineOptions, Generation};
use lily_model::plan::{Choice, PrefillEnd};
use lily_plan::{Device, Fusions, Precision, control};
use lily_tests::replay::{Replay, ReplayOptions, Tensors};
use lily_tests::rig::{Rig, all_fusions};
use lily_tests::{GOLDEN, Golden, gpu, pair};

fn metal() -> Box<dyn Device> {
    let (host, _) = Replay::new(ReplayOptions::default());
    Box::new(MetalDevice::new(host, MetalOptions::default()))
}

/// Two command buffers a step, and as many as there are stages for a chunk; any order between barriers.
fn cut_and_shuffled() -> Box<dyn Device> {
    let options = ReplayOptions { shuffle: Some(11), limits: slow(), ..ReplayOptions::default() };
    let decode = DecodeSubmission::Early { stages: 3 };
    Box::new(MetalDevice::new(
        Replay::new(options).0,
        MetalOptions { decode, ..Default::default() },
    ))
}

/// A device so slow that every stage takes a command buffer of its own.
fn slow() -> Limits {
    Limits { pace: Pace { flops: 1.0, bytes: 1.0 }, ..Limits::default() }
}

/// As on the MSL test device.
const LAUNCH: f32 = 1e-2;

#[test]
fn every_launch_agrees_with_the_interpreter() {
    for name in ["generic", "odd"] {
        pair::agrees_at_every_launch(name, metal(), LAUNCH);
    }
}

#[test]
fn golden_logits_stay_within_the_bar() {
    for name in GOLDEN {
        gpu::golden_logits(name, &metal);
    }
}

#[test]
fn cuts_and_any_order_between_barriers_give_the_same_bits() {
    for name in ["heads", "odd"] {
        gpu::greedy_is_repeatable(name, &metal, &cut_and_shuffled);
    }
}

/// With tensor operations where the self-test says that they multiply right, and only there.
#[test]
fn tensor_operations_are_taken_where_the_self_test_passes() {
    let products = |tensors| {
        let (host, _) = Replay::new(ReplayOptions { tensors, ..ReplayOptions::default() });
        MetalDevice::new(host, MetalOptions::default()).host().target().products
    };
    assert_eq!(products(Tensors::None), Products::SimdgroupMatrix);
    assert_eq!(products(Tensors::Wrong), Products::SimdgroupMatrix);
    assert_eq!(products(Tensors::Right), Products::TensorOperations);
    gpu::golden_logits("generic", &|| {
        let options = ReplayOptions { tensors: Tensors::Right, ..ReplayOptions::default() };
        Box::new(MetalDevice::new(Replay::new(options).0, MetalOptions::default()))
    });
}

#[test]
fn steps_taken_back_leave_the_state_of_a_cold_run() {
    gpu::step_back_equals_a_cold_run("generic", &metal);
}

#[test]
fn kept_states_give_the_bits_of_the_first_run() {
    gpu::kept_states_give_the_bits_of_the_first_run("odd", &metal);
}

#[test]
fn halted_sequences_are_left_alone() {
    gpu::halted_steps_change_nothing("generic", metal());
}

/// Submissions of every kind of plan, with reads behind the decode steps; the calls, and what they do.
fn trace(name: &str, limits: Limits, decode: DecodeSubmission) -> (Vec<Command>, Counts, Expected) {
    let golden = Golden::open(name);
    let rig = Rig::new(&golden, Precision::BF16, 2, 16);
    let (host, remote) = Replay::new(ReplayOptions { limits, ..ReplayOptions::default() });
    let mut device = MetalDevice::new(host, MetalOptions { decode, ..MetalOptions::default() });
    let table = &rig.buffers.table;
    device.allocate(table, rig.weights().clone()).expect("the buffers fit");
    // All sequences are halted: what is computed is the business of other tests.
    let rows = 2 * control::WORDS;
    lily_plan::write_i32(&mut device, rig.buffers.control, 0, &vec![1; rows]).expect("in bounds");
    let mut expected = Expected::default();
    let mut run = |device: &mut MetalDevice<Replay>, plan, reads: usize| {
        let id = device.compile(&plan).expect("the device runs every plan");
        device.submit(id).expect("it runs");
        for read in 0..reads {
            let bytes = 4 * control::WORDS;
            device.fetch(rig.buffers.control, read * bytes, bytes).expect("in bounds");
        }
        expected.plans += 1;
        expected.launches += plan.launches().len();
        expected.stages += plan.stages();
        expected.settings +=
            plan.launches().iter().map(|l| l.bindings.len() + 2).sum::<usize>() + 4 * reads;
        expected.fetches += reads;
    };
    for fusions in all_fusions() {
        run(&mut device, rig.decode(0, Choice::Device, fusions), 2);
        run(&mut device, rig.decode(100, Choice::Host, fusions), 0);
    }
    for end in [PrefillEnd::More, PrefillEnd::Sample, PrefillEnd::Logits] {
        for tokens in [8, 16] {
            run(&mut device, rig.prefill(tokens, 1, end), 0);
        }
    }
    device.wait().expect("everything runs");
    let commands = remote.trace();
    let counts = device.facts(|facts| check(&commands, facts)).expect("the facts are there");
    (commands, counts.unwrap_or_else(|fault| panic!("{name}: {fault}")), expected)
}

#[derive(Default)]
struct Expected {
    plans: usize,
    launches: usize,
    stages: usize,
    fetches: usize,
    /// Pipeline and arguments of each dispatch.
    settings: usize,
}

#[test]
fn calls_of_every_plan_are_legal_with_barriers_at_stage_borders_only() {
    for name in GOLDEN {
        let (_, counts, expected) = trace(name, Limits::default(), DecodeSubmission::Whole);
        assert_eq!((counts.plans, counts.fetches), (expected.plans, expected.fetches));
        assert_eq!(counts.dispatches, expected.launches + expected.fetches);
        // One command buffer for each plan; the first read behind a step is in the step's, behind a barrier, and
        // every other one has its own.
        let first_reads = expected.fetches / 2;
        assert_eq!(counts.command_buffers, expected.plans + expected.fetches - first_reads);
        assert_eq!(counts.barriers, expected.stages - expected.plans + first_reads);
        assert!(counts.settings < expected.settings, "what is set already is not set again");
    }
}

#[test]
fn calls_stay_legal_when_plans_are_cut() {
    let (_, counts, expected) = trace("generic", slow(), DecodeSubmission::Early { stages: 3 });
    let first_reads = expected.fetches / 2;
    assert_eq!(counts.command_buffers, expected.stages + expected.fetches - first_reads);
    assert_eq!(counts.barriers, first_reads, "a fence is at every stage border");
    let (_, counts, expected) =
        trace("generic", Limits::default(), DecodeSubmission::Early { stages: 3 });
    let decodes = 2 * all_fusions().len();
    let command_buffers = expected.plans + decodes + expected.fetches - first_reads;
    assert_eq!(counts.command_buffers, command_buffers, "two for each decode step");
}

/// What the checker of calls says of calls that were changed.
#[test]
fn the_checker_finds_what_is_wrong() {
    let golden = Golden::open("generic");
    let rig = Rig::new(&golden, Precision::BF16, 1, 16);
    let (host, remote) = Replay::new(ReplayOptions::default());
    let mut device = MetalDevice::new(host, MetalOptions::default());
    device.allocate(&rig.buffers.table, rig.weights().clone()).expect("the buffers fit");
    let id =
        device.compile(&rig.decode(0, Choice::Device, Fusions::default())).expect("it compiles");
    for _ in 0..2 {
        device.submit(id).expect("it runs");
        device.fetch(rig.buffers.control, 0, 32).expect("in bounds");
    }
    device.wait().expect("everything runs");
    let good = remote.trace();
    let at = |wanted: fn(&Command) -> bool| good.iter().position(wanted).expect("there is one");
    let barrier = at(|c| matches!(c, Command::Barrier));
    let dispatch = at(|c| matches!(c, Command::Dispatch { .. }));
    let wait = at(|c| matches!(c, Command::WaitFence));
    let argument = at(|c| matches!(c, Command::SetBuffer { index: 0, .. }));
    let buffer = at(|c| matches!(c, Command::SetBuffer { index: 2, .. }));
    let commit = at(|c| matches!(c, Command::Commit));
    let signal = at(|c| matches!(c, Command::Signal { .. }));
    let moved = |at: usize, by: u64| {
        let mut calls = good.clone();
        if let Command::SetBuffer { place, .. } = &mut calls[at] {
            place.offset += by;
        }
        calls
    };
    let without = |at: usize| [&good[..at], &good[at + 1..]].concat();
    let twice = |at: usize| [&good[..=at], &good[at..]].concat();
    let shrunk = {
        let mut calls = good.clone();
        if let Command::Dispatch { grid, .. } = &mut calls[dispatch] {
            grid[0] += 1;
        }
        calls
    };
    let late = {
        let first = (wait..).find(|&i| matches!(good[i], Command::Dispatch { .. })).expect("one");
        [&good[..wait], &good[wait + 1..=first], &good[wait..=wait], &good[first + 1..]].concat()
    };
    let cases: [(&str, Vec<Command>, &str); 14] = [
        ("a lost barrier", without(barrier), "no barrier is between"),
        ("a barrier too many", twice(barrier), "barrier"),
        (
            "a barrier in front",
            [&good[..dispatch], &good[barrier..=barrier], &good[dispatch..]].concat(),
            "barrier",
        ),
        ("a lost dispatch", without(dispatch), ""),
        ("a dispatch twice", twice(dispatch), "in the middle of plan"),
        ("another grid", shrunk, "launch"),
        ("no wait for the fence", without(wait), "does not wait"),
        ("a late wait", late, "fence"),
        ("a misaligned argument", moved(argument, 4), "need 256"),
        ("a misaligned buffer", moved(buffer, 4), "need 16"),
        ("another buffer", moved(buffer, 256), ""),
        ("a buffer outside", moved(buffer, 1 << 40), "not inside an allocation"),
        ("no signal", without(signal), "need Signalled"),
        ("no commit", without(commit), "need Outside"),
    ];
    device
        .facts(|facts| {
            assert_eq!(check(&good, facts).expect("the calls are right").plans, 2);
            for (what, calls, message) in &cases {
                let fault = check(calls, facts).expect_err(what).to_string();
                assert!(fault.contains(message), "{what}: {fault}");
            }
        })
        .expect("the facts are there");
}

/// The host's clock gives a second for each dispatch.
#[test]
fn a_profile_has_every_launch_under_its_kernel() {
    let golden = Golden::open("generic");
    let rig = Rig::new(&golden, Precision::BF16, 1, 16);
    let (host, _) = Replay::new(ReplayOptions::default());
    let mut device = MetalDevice::new(host, MetalOptions::default());
    device.allocate(&rig.buffers.table, rig.weights().clone()).expect("the buffers fit");
    // Halted: memory holds anything else.
    lily_plan::write_i32(&mut device, rig.buffers.control, 0, &[1; control::WORDS])
        .expect("in bounds");
    let plan = rig.decode(0, Choice::Device, Fusions::default());
    let id = device.compile(&plan).expect("it compiles");
    let times = device.profile(id, 3).expect("it runs");
    for time in &times {
        let own = plan.launches().iter().filter(|l| l.kernel == time.kernel).count();
        assert_eq!((time.launches, time.seconds), (own, own as f64), "{}", time.kernel);
    }
    assert_eq!(times.iter().map(|t| t.launches).sum::<usize>(), plan.launches().len());
}

/// A device that starts over keeps its memory, so other sequences go on where they were.
#[test]
fn a_failed_launch_fails_its_request_alone_and_is_named() {
    let golden = Golden::open("generic");
    let (host, remote) = Replay::new(ReplayOptions::default());
    let device = Box::new(MetalDevice::new(host, MetalOptions::default()));
    let options = EngineOptions {
        context: 64,
        chunk: 16,
        batch: 2,
        run_ahead: 2,
        steps_ahead: 1,
        ..EngineOptions::default()
    };
    let mut engine = golden.engine(device, options);
    let (prompt, greedy) = (&golden.prompts.prompts[0], &golden.prompts.greedy[0]);
    let generation = Generation { limit: 6, ..Generation::default() };
    let generate = |engine: &mut lily_model::engine::Engine, sequence, ids: &[u32]| {
        let mut out = Vec::new();
        let done = engine.generate(sequence, ids, &generation, &mut |progress| {
            out.extend(progress.token());
            std::ops::ControlFlow::Continue(())
        });
        done.map(|_| out)
    };
    let (one, other) = (engine.open().expect("free"), engine.open().expect("free"));
    let start = generate(&mut engine, one, prompt).expect("it runs");

    remote.break_launch(Some(5));
    let error = generate(&mut engine, other, prompt).expect_err("a launch is broken").to_string();
    assert!(
        error.contains("(launch 5) failed on device metal") && error.contains("broken"),
        "{error}"
    );
    assert_eq!(remote.rebuilt(), 2, "after the command buffer, and after the launch alone");
    remote.break_launch(None);
    engine.close(other);

    let rest = generate(&mut engine, one, &start[5..]).expect("the other sequence goes on");
    assert_eq!([&start[..], &rest[..]].concat()[..8], greedy[..8]);

    let other = engine.open().expect("free");
    remote.lose_next();
    let error = generate(&mut engine, other, prompt).expect_err("it is lost").to_string();
    assert!(
        error.contains("(launch 0)") && error.contains("none of its launches fails"),
        "{error}"
    );
    engine.close(other);
    let other = engine.open().expect("free");
    assert_eq!(generate(&mut engine, other, prompt).expect("it runs again"), start);
}
