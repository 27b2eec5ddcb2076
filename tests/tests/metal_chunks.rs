//! Chunks of prompts on the Metal device: how many command buffers each is, by where in a context it runs, and that this
//! changes no bit. The calls are carried out on the MSL test device.

#![cfg(target_os = "linux")]

use std::ops::ControlFlow;

use lily_metal::encoder::check::check;
use lily_metal::encoder::{Command, Estimate, Limits, Pace, SUBMISSION_SECONDS, Work};
use lily_metal::{MetalDevice, MetalOptions};
use lily_model::Config;
use lily_model::engine::EngineOptions;
use lily_model::plan::{PlanBuilder, PrefillEnd};
use lily_plan::{Device, Fusions, Plan, Precision, control};
use lily_tests::plan_model::PlanModel;
use lily_tests::replay::{Remote, Replay, ReplayOptions};
use lily_tests::rig::Rig;
use lily_tests::{Golden, relative_rms};

/// A device that does this many operations while a command buffer may last, with memory that costs nothing.
fn device(flops: f64) -> (MetalDevice<Replay>, Remote) {
    let pace = Pace { flops: flops / SUBMISSION_SECONDS, bytes: 1e18 };
    let limits = Limits { pace, ..Limits::default() };
    let (host, remote) = Replay::new(ReplayOptions { limits, ..ReplayOptions::default() });
    (MetalDevice::new(host, MetalOptions::default()), remote)
}

/// Arithmetic operations of a plan behind `position` tokens.
fn flops(plan: &Plan, position: usize) -> f64 {
    let counted = Estimate::new(plan, Pace { flops: 1.0, bytes: 1e18 });
    counted.submission_seconds(&[], position).iter().sum()
}

/// Command buffers that begin with a launch.
fn command_buffers(calls: &[Command]) -> usize {
    let begins = |call: &&Command| {
        matches!(call, Command::BeginCommandBuffer { first: Work::Launch { .. }, .. })
    };
    calls.iter().filter(begins).count()
}

#[test]
fn one_plan_is_cut_where_the_context_makes_it_long_and_nowhere_else() {
    let rig = Rig::new(&Golden::open("generic"), Precision::BF16, 2, 16);
    let plan = rig.prefill(16, 1, PrefillEnd::Sample);
    let (low, high) = (3, lily_tests::rig::CAPACITY - 16);
    let (mut device, remote) = device((flops(&plan, low) + flops(&plan, high)) / 2.0);
    device.allocate(&rig.buffers.table, rig.weights().clone()).expect("the buffers fit");
    let mut sent = Vec::new();
    let mut all = Vec::new();
    let id = device.compile(&plan).expect("the device runs every plan");
    for position in [low, high, high, low, high] {
        // Halted: what is computed is the business of other tests.
        let mut rows = vec![1; 2 * control::WORDS];
        rows[control::WORDS + control::POSITION] = position as i32;
        lily_plan::write_i32(&mut device, rig.buffers.control, 0, &rows).expect("in bounds");
        // A second one waits for the first.
        for _ in 0..2 {
            device.submit(id).expect("it runs");
        }
        device.wait().expect("everything runs");
        let calls = remote.trace();
        sent.push(command_buffers(&calls));
        all.extend(calls);
    }
    assert_eq!(sent, [2, 4, 4, 2, 4]);
    let counts = device.facts(|facts| check(&all, facts)).expect("the facts are there");
    let counts = counts.unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!((counts.plans, counts.command_buffers), (10, 16));
    assert_eq!(counts.dispatches, 10 * plan.launches().len());
    assert_eq!(counts.barriers + counts.command_buffers, 10 * plan.stages());
}

/// Tokens of the prompt below.
const PROMPT: usize = 400;

/// Positions behind each chunk of a prompt with the command buffers of the chunk, and the logits behind all.
fn read(flops: f64, chunk: usize) -> (Vec<(usize, usize)>, Vec<f32>) {
    let (device, remote) = device(flops);
    let options = EngineOptions { context: 512, chunk, ..EngineOptions::default() };
    let mut engine = Golden::open("generic").engine(Box::new(device), options);
    let sequence = engine.open().expect("free");
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| i * 7 % 300).collect();
    remote.trace();
    let mut chunks = Vec::new();
    engine
        .prefill_chunks(sequence, &prompt, PrefillEnd::Logits, &mut |fed| {
            chunks.push((fed, command_buffers(&remote.trace())));
            ControlFlow::Continue(())
        })
        .expect("it runs");
    (chunks, engine.logits(sequence).expect("a prompt was read"))
}

/// R21.
#[test]
fn a_prompt_is_read_in_smaller_chunks_or_in_parts_the_deeper_it_is_with_the_same_results() {
    let model = PlanModel::new(&Config::read(&Golden::open("generic").folder).expect("it reads"));
    let operations = |tokens: usize, position: usize| {
        let session = model.session(1, tokens);
        let buffers = model.buffers(&session);
        let builder = PlanBuilder::new(&model.shape, &session, &buffers, Fusions::default());
        flops(&builder.prefill(tokens, 0, PrefillEnd::Draw).expect("a valid plan"), position)
    };
    let (free, expected) = read(1e18, 128);
    assert_eq!(free, [(128, 1), (256, 1), (384, 1), (400, 1)]);
    // 128 tokens are one command buffer up to position 200. No chunk is smaller for that, so deeper ones are cut.
    let (chunks, logits) = read(operations(128, 200), 128);
    assert_eq!(chunks, [(128, 1), (256, 1), (384, 2), (400, 1)]);
    assert!(logits == expected, "a cut changes no bit");
    // 256 tokens are one up to position 100, 128 anywhere.
    let (chunks, logits) = read(operations(256, 100), 256);
    assert_eq!(chunks, [(256, 1), (384, 1), (400, 1)]);
    assert!(relative_rms(&logits, &expected) < 0.03);
}
