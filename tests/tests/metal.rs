//! Golden models through the Metal device: its calls are checked one by one, and carried out on the MSL test
//! device.

#![cfg(target_os = "linux")]

use std::sync::Arc;

use lily_kernels::gpu::Products;
use lily_metal::encoder::check::{Counts, Facts, PlanFacts, check};
use lily_metal::encoder::{
    Command, DecodeEncoding, DecodeSubmission, IndirectCall, Limits, Pace, PipelineId,
};
use lily_metal::{Host as _, MetalDevice, MetalOptions};
use lily_model::engine::{EngineOptions, Generation};
use lily_model::plan::{Choice, PrefillEnd};
use lily_plan::{Device, Fusions, Plan, Precision, control};
use lily_tests::replay::{Indirect, Replay, ReplayOptions, Tensors};
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
    // The model whose sizes are odd: what is bound where does not hang on a model.
    pair::agrees_at_every_launch("odd", metal(), LAUNCH);
}

#[test]
fn golden_logits_stay_within_the_bar() {
    // Kernels are those of the MSL test device, which runs all prompts of all models; longer ones would show no other
    // calls here, and one is read below.
    for name in GOLDEN {
        gpu::golden_prompts(name, 64, &metal);
    }
}

/// Decode steps are encoded once, in two parts, and their commands run in any order that barriers leave.
fn encoded_once() -> Box<dyn Device> {
    let options = ReplayOptions { shuffle: Some(12), ..ReplayOptions::default() };
    let once = MetalOptions {
        decode: DecodeSubmission::Early { stages: 3 },
        encoding: DecodeEncoding::Once,
        ..MetalOptions::default()
    };
    Box::new(MetalDevice::new(Replay::new(options).0, once))
}

#[test]
fn cuts_encoding_once_and_any_order_that_barriers_leave_give_the_same_bits() {
    gpu::greedy_gives_the_same_bits("heads", &[&metal, &cut_and_shuffled, &encoded_once]);
    gpu::greedy_gives_the_same_bits("odd", &[&cut_and_shuffled, &encoded_once]);
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
fn trace(name: &str, limits: Limits, options: MetalOptions) -> (Vec<Command>, Counts, Expected) {
    let golden = Golden::open(name);
    let rig = Rig::new(&golden, Precision::BF16, 2, 16);
    let (host, remote) = Replay::new(ReplayOptions { limits, ..ReplayOptions::default() });
    let mut device = MetalDevice::new(host, options);
    let table = &rig.buffers.table;
    device.allocate(table, rig.weights().clone()).expect("the buffers fit");
    // All sequences are halted: what is computed is the business of other tests.
    let rows = 2 * control::WORDS;
    lily_plan::write_i32(&mut device, rig.buffers.control, 0, &vec![1; rows]).expect("in bounds");
    let mut expected = Expected::default();
    let mut run = |device: &mut MetalDevice<Replay>, plan: Arc<Plan>, reads: usize| {
        let id = device.compile(&plan).expect("the device runs every plan");
        device.submit(id).expect("it runs");
        if !plan.step().is_prefill() {
            expected.decode_launches += plan.launches().len();
            expected.decode_stages += plan.stages();
        }
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
    decode_launches: usize,
    decode_stages: usize,
    fetches: usize,
    /// Pipeline and arguments of each dispatch.
    settings: usize,
}

#[test]
fn calls_of_every_plan_are_legal_with_barriers_at_stage_borders_only() {
    for name in GOLDEN {
        let (_, counts, expected) = trace(name, Limits::default(), MetalOptions::default());
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
    let early = DecodeSubmission::Early { stages: 3 };
    let options = MetalOptions { decode: early, ..MetalOptions::default() };
    let (_, counts, expected) = trace("generic", slow(), options);
    let first_reads = expected.fetches / 2;
    assert_eq!(counts.command_buffers, expected.stages + expected.fetches - first_reads);
    assert_eq!(counts.barriers, first_reads, "a fence is at every stage border");
    let (_, counts, expected) = trace("generic", Limits::default(), options);
    let decodes = 2 * all_fusions().len();
    let command_buffers = expected.plans + decodes + expected.fetches - first_reads;
    assert_eq!(counts.command_buffers, command_buffers, "two for each decode step");
}

#[test]
fn a_decode_plan_encoded_once_is_executed_with_one_call() {
    let once = MetalOptions { encoding: DecodeEncoding::Once, ..MetalOptions::default() };
    for name in GOLDEN {
        let (_, counts, expected) = trace(name, Limits::default(), once);
        let decodes = 2 * all_fusions().len();
        assert_eq!((counts.plans, counts.executions), (expected.plans, decodes));
        assert_eq!(counts.dispatches, expected.launches + expected.fetches);
        // Launches of the first stage wait for nothing, all others for those before them.
        let (commands, barriers) = counts.indirect;
        assert_eq!(commands, expected.decode_launches);
        assert!(barriers < commands && barriers >= expected.decode_stages - decodes, "{counts:?}");
        // In encoders there are barriers in prefill plans, and one in front of the read behind a step.
        let (prefills, first_reads) = (expected.plans - decodes, expected.fetches / 2);
        let prefill_stages = expected.stages - expected.decode_stages;
        assert_eq!(counts.barriers, prefill_stages - prefills + first_reads);
    }
    // Cut into two, or at every stage.
    let early = MetalOptions { decode: DecodeSubmission::Early { stages: 3 }, ..once };
    let (_, counts, _) = trace("generic", Limits::default(), early);
    assert_eq!(counts.executions, 4 * all_fusions().len());
    let (_, counts, expected) = trace("generic", slow(), once);
    assert_eq!((counts.executions, counts.indirect.1), (expected.decode_stages, 0));
}

#[test]
fn a_command_of_an_indirect_command_buffer_that_fails_is_named_and_the_buffer_stays() {
    let golden = Golden::open("generic");
    let (host, remote) = Replay::new(ReplayOptions::default());
    let once = MetalOptions { encoding: DecodeEncoding::Once, ..MetalOptions::default() };
    let options = EngineOptions { context: 64, batch: 2, ..EngineOptions::default() };
    let mut engine = golden.engine(Box::new(MetalDevice::new(host, once)), options);
    let (one, other) = (engine.open().expect("free"), engine.open().expect("free"));
    let prompt = &golden.prompts.prompts[1];
    let more = golden.prompts.greedy[1][0];
    for sequence in [one, other] {
        engine.prefill(sequence, prompt, PrefillEnd::Logits).expect("it runs");
    }
    engine.step(one, more).expect("it runs");
    let logits = engine.logits(one).expect("a step's");
    remote.break_launch(Some(7));
    let error = engine.step(other, more).expect_err("a launch is broken").to_string();
    assert!(error.contains("(launch 7) failed on device metal"), "{error}");
    assert_eq!(remote.rebuilt(), 2, "after the command buffer, and after the launch alone");
    remote.break_launch(None);
    remote.trace();
    engine.close(other);
    // The first sequence goes on, and another one as the first did, without a plan encoded anew.
    engine.step(one, more).expect("it runs");
    let again = engine.open().expect("free");
    engine.prefill(again, prompt, PrefillEnd::Logits).expect("it runs");
    engine.step(again, more).expect("it runs");
    assert!(engine.logits(again).expect("a step's") == logits);
    let calls = remote.trace();
    assert!(calls.iter().any(|call| matches!(call, Command::Execute { .. })));
    assert!(!calls.iter().any(|call| matches!(call, Command::NewIndirect { .. })));
}

/// What the checker says of changed indirect command buffers.
#[test]
fn the_checker_finds_what_is_wrong_in_indirect_command_buffers() {
    let golden = Golden::open("generic");
    let rig = Rig::new(&golden, Precision::BF16, 1, 16);
    let (host, remote) = Replay::new(ReplayOptions::default());
    let once = MetalOptions { encoding: DecodeEncoding::Once, ..MetalOptions::default() };
    let mut device = MetalDevice::new(host, once);
    device.allocate(&rig.buffers.table, rig.weights().clone()).expect("the buffers fit");
    // Halted: memory holds anything else.
    lily_plan::write_i32(&mut device, rig.buffers.control, 0, &[1; control::WORDS])
        .expect("in bounds");
    let plan = rig.decode(0, Choice::Device, Fusions::default());
    let id = device.compile(&plan).expect("it compiles");
    for _ in 0..2 {
        device.submit(id).expect("it runs");
        device.fetch(rig.buffers.control, 0, 32).expect("in bounds");
    }
    device.wait().expect("everything runs");
    let good = remote.trace();
    let call = |wanted: fn(&IndirectCall) -> bool| {
        let found = |c: &Command| matches!(c, Command::Encode { call, .. } if wanted(call));
        good.iter().position(found).expect("there is one")
    };
    let at = |wanted: fn(&Command) -> bool| good.iter().position(wanted).expect("there is one");
    let barrier = call(|c| matches!(c, IndirectCall::SetBarrier));
    let dispatch = call(|c| matches!(c, IndirectCall::Dispatch { .. }));
    let pipeline = call(|c| matches!(c, IndirectCall::SetPipeline(_)));
    let argument = call(|c| matches!(c, IndirectCall::SetBuffer { index: 0, .. }));
    let buffer = call(|c| matches!(c, IndirectCall::SetBuffer { index: 2, .. }));
    let execute = at(|c| matches!(c, Command::Execute { .. }));
    let behind = at(|c| matches!(c, Command::Barrier));
    let changed = |at: usize, with: &dyn Fn(&mut IndirectCall)| {
        let mut calls = good.clone();
        if let Command::Encode { call, .. } = &mut calls[at] {
            with(call);
        }
        calls
    };
    let moved = |at: usize, by: u64| {
        changed(at, &|call| {
            if let IndirectCall::SetBuffer { place, .. } = call {
                place.offset += by;
            }
        })
    };
    let without = |at: usize| [&good[..at], &good[at + 1..]].concat();
    let twice = |at: usize| [&good[..=at], &good[at..]].concat();
    let first_waits = {
        let Command::Encode { id, command, .. } = good[dispatch] else { unreachable!() };
        let waits = Command::Encode { id, command, call: IndirectCall::SetBarrier };
        [&good[..dispatch], &[waits], &good[dispatch..]].concat()
    };
    let short = {
        let mut calls = good.clone();
        if let Command::Execute { commands, .. } = &mut calls[execute] {
            *commands -= 1;
        }
        calls
    };
    let far = changed(argument, &|call| {
        if let IndirectCall::SetBuffer { index, .. } = call {
            *index = 30;
        }
    });
    let unknown = changed(pipeline, &|call| *call = IndirectCall::SetPipeline(PipelineId(9999)));
    let shrunk = changed(dispatch, &|call| {
        if let IndirectCall::Dispatch { grid, .. } = call {
            grid[0] += 1;
        }
    });
    let cases: [(&str, Vec<Command>, &str); 14] = [
        ("a lost barrier", without(barrier), "has no barrier"),
        ("a barrier too many", first_waits, "conflicts with none"),
        ("a command that is not encoded", without(dispatch), "is not encoded"),
        ("a command that is encoded twice", twice(dispatch), "is encoded already"),
        ("no pipeline", without(pipeline), "no pipeline is set"),
        ("no such pipeline", unknown, "PipelineId(9999)"),
        ("another grid", shrunk, "launch"),
        ("a misaligned argument", moved(argument, 4), "need 256"),
        ("a misaligned buffer", moved(buffer, 4), "need 16"),
        ("a buffer outside", moved(buffer, 1 << 40), "not inside an allocation"),
        ("a buffer that is not set", without(buffer), "not bound"),
        ("an argument behind the last", far, "need less than"),
        ("a part of the commands", short, "has not"),
        ("no barrier behind the execution", without(behind), "no barrier is between"),
    ];
    device
        .facts(|facts| {
            let counts = check(&good, facts).expect("the calls are right");
            assert_eq!((counts.plans, counts.executions), (2, 2));
            for (what, calls, message) in &cases {
                let fault = check(calls, facts).expect_err(what).to_string();
                assert!(fault.contains(message), "{what}: {fault}");
            }
            // As if Metal had compiled the functions for encoders only.
            let mut pipelines = facts.pipelines.to_vec();
            pipelines.iter_mut().for_each(|info| info.indirect = false);
            let plans = facts
                .plans
                .iter()
                .map(|facts| PlanFacts { plan: facts.plan, sizes: facts.sizes.clone() });
            let others = Facts { pipelines: &pipelines, plans: plans.collect(), ..*facts };
            let fault = check(&good, &others).expect_err("no pipeline allows it").to_string();
            assert!(fault.contains("indirect: false"), "{fault}");
        })
        .expect("the facts are there");
}

#[test]
fn a_text_that_the_compiler_refuses_is_named_with_what_it_says() {
    let golden = Golden::open("generic");
    let rig = Rig::new(&golden, Precision::BF16, 1, 16);
    let plan = rig.decode(0, Choice::Device, Fusions::default());
    let options = ReplayOptions { refused: Some("router"), ..ReplayOptions::default() };
    let mut device = MetalDevice::new(Replay::new(options).0, MetalOptions::default());
    device.allocate(&rig.buffers.table, rig.weights().clone()).expect("the buffers fit");
    let error = device.compile(&plan).expect_err("it is refused").to_string();
    assert!(error.contains("Metal does not compile kernel `router`"), "{error}");
    assert!(error.contains("router/kernel.metal:") && error.contains("error: "), "{error}");
}

#[test]
fn a_function_that_indirect_command_buffers_do_not_run_is_refused_by_name() {
    let golden = Golden::open("generic");
    let rig = Rig::new(&golden, Precision::BF16, 1, 16);
    let options = ReplayOptions { indirect: Indirect::None, ..ReplayOptions::default() };
    let once = MetalOptions { encoding: DecodeEncoding::Once, ..MetalOptions::default() };
    let mut device = MetalDevice::new(Replay::new(options).0, once);
    device.allocate(&rig.buffers.table, rig.weights().clone()).expect("the buffers fit");
    let plan = rig.decode(0, Choice::Device, Fusions::default());
    let error = device.compile(&plan).expect_err("no function may").to_string();
    assert!(error.contains(plan.launches()[0].kernel), "{error}");
    assert!(error.contains("indirect command buffers; encode each step"), "{error}");
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

/// A step is committed before the token of the one before it is read, and none of it allocates (R20).
#[test]
fn the_next_step_is_committed_before_the_last_one_is_read() {
    let golden = Golden::open("generic");
    for encoding in [DecodeEncoding::EachStep, DecodeEncoding::Once] {
        let (host, remote) = Replay::new(ReplayOptions::default());
        let device = MetalDevice::new(host, MetalOptions { encoding, ..MetalOptions::default() });
        let options =
            EngineOptions { context: 64, run_ahead: 2, steps_ahead: 1, ..EngineOptions::default() };
        let mut engine = golden.engine(Box::new(device), options);
        for _ in 0..2 {
            let sequence = engine.open().expect("free");
            let generation = Generation { limit: 9, ..Generation::default() };
            let mut run =
                engine.start(sequence, &golden.prompts.prompts[1], generation).expect("it starts");
            while !run.is_prompt_read() {
                engine.advance(&mut run).expect("it runs");
            }
            // The first token is chosen at the end of the prompt.
            engine.advance(&mut run).expect("it runs");
            for token in 1..8 {
                remote.waits();
                engine.advance(&mut run).expect("it runs");
                let waits = remote.waits();
                assert!(
                    !waits.is_empty() && waits.iter().all(|(waited, last)| last > waited),
                    "token {token}: {waits:?}"
                );
            }
            engine.cancel(&mut run).expect("it ends");
            engine.close(sequence);
        }
        assert_eq!(remote.allocated(), 1);
    }
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
