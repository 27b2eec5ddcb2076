//! The test device behind the `Device` trait: what it refuses, and in which words.

#![cfg(target_os = "linux")]

use std::process::Command;

use lily_kernels::conformance::{Bar, Case, CaseBuilder, Tolerance, cases_in, small_shapes};
use lily_kernels::{ModelShape, table, topk};
use lily_msl_test::{Block, MslOptions, MslTestDevice};
use lily_plan::{BufferId, Device, DeviceError, Launch, PlanId, Precision, Step};

const NO_CLANG: &str = "/no/clang++";

fn topk_case() -> Case {
    let mut cases = cases_in(Bar::Bf16.precision(), || table::cases_of(|k| k.name == "topk"));
    cases.swap_remove(0)
}

fn device(case: &Case) -> (MslTestDevice, PlanId) {
    let mut device = MslTestDevice::new(MslOptions::default());
    device.allocate(case.plan.buffers(), case.weights.clone()).expect("there is room");
    let plan = device.compile(&case.plan).expect("the text compiles");
    (device, plan)
}

fn find(case: &Case, name: &str) -> BufferId {
    case.plan.buffers().find(name).expect("topk has it")
}

#[test]
fn it_wants_bfloat_inputs_and_cache() {
    let device = MslTestDevice::new(MslOptions::default());
    assert_eq!((device.name(), device.precision()), ("msl-test", Precision::BF16));
}

#[test]
fn fresh_memory_is_nan_so_that_nobody_counts_on_zeros() {
    let case = topk_case();
    let (mut device, _) = device(&case);
    let logits = find(&case, "router_logits");
    let values = lily_plan::read_f32(&mut device, logits, 0, 4).expect("inside");
    assert!(values.iter().all(|v| v.is_nan()), "{values:?}");
}

#[test]
fn ranges_outside_of_a_buffer_are_refused_by_name() {
    let case = topk_case();
    let (mut device, _) = device(&case);
    let logits = find(&case, "router_logits");
    let end = case.plan.buffers().get(logits).bytes() as usize;
    let read = device.read(logits, end - 3, &mut [0; 4]).expect_err("4 bytes, 3 are there");
    assert_eq!(read.to_string(), "read outside of router_logits");
    let write = device.write(logits, usize::MAX, &[0; 4]).expect_err("far outside");
    assert_eq!(write.to_string(), "write outside of router_logits");
    device.write(logits, end - 4, &[0; 4]).expect("the last 4 bytes");
}

#[test]
fn plans_and_launches_that_do_not_exist_are_refused() {
    let case = topk_case();
    let (mut device, plan) = device(&case);
    assert!(matches!(device.submit(PlanId(7)), Err(DeviceError::Usage(_))));
    assert!(matches!(device.run_launch(plan, 1), Err(DeviceError::Usage(_))));
    let buffers = topk_case().plan.buffers().clone();
    let mut other = MslTestDevice::new(MslOptions::default());
    assert!(
        matches!(other.compile(&case.plan), Err(DeviceError::Usage(_))),
        "nothing is allocated"
    );
    assert_eq!(device.buffers().len(), buffers.len());
}

/// Compiles a plan of one launch of `topk`, made from `change`d one, for a model that chooses `top_k` experts.
fn compiled(top_k: usize, change: impl FnOnce(&mut Launch)) -> Result<PlanId, DeviceError> {
    let shape = ModelShape { experts: 64, top_k, ..small_shapes().swap_remove(0) };
    let step = Step::Decode { batch: 1 };
    let mut c = CaseBuilder::new(&shape, step);
    let slots = shape.slots();
    let buffers = topk::Buffers {
        control: c.control(),
        router_logits: c.f32("router_logits", [1, shape.experts + 1]),
        ids: c.i32("ids", [1, slots], vec![0; slots]),
        route: c.f32("route", [1, slots]),
    };
    let mut launch = topk::launch(&c.context(), buffers);
    change(&mut launch);
    let plan = c.build(launch, Tolerance::PLAIN).plan;
    let mut device = MslTestDevice::new(MslOptions::default());
    device.allocate(plan.buffers(), Default::default())?;
    device.compile(&plan)
}

#[test]
fn an_unsupported_shape_fails_when_its_plan_is_compiled_by_name() {
    compiled(31, |_| ()).expect("as many as it can");
    let error = compiled(32, |_| ()).expect_err("one too many");
    assert!(
        matches!(&error, DeviceError::Unsupported { kernel, .. } if kernel == "topk"),
        "{error}"
    );
    let expected = "kernel `topk` on device msl-test cannot run launch 0 of the plan: the number of \
                    experts of a token is 32, need at most 31";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_missing_kernel_fails_when_its_plan_is_compiled_by_name() {
    let error = compiled(4, |launch| launch.kernel = "sort").expect_err("there is no such kernel");
    let expected = "device msl-test has no kernel `sort`, named by launch 0 of the plan";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_block_has_its_size_and_nothing_more() {
    let mut block = Block::new(100).expect("clang is there").expect("there is room");
    assert_eq!((block.len(), block.is_empty()), (100, false));
    assert!(block.write(96, &[1, 2, 3, 4]));
    assert!(!block.write(97, &[0; 4]));
    let mut bytes = [0; 5];
    assert!(block.read(95, &mut bytes));
    assert_eq!(bytes, [0xff, 1, 2, 3, 4]);
    assert!(!block.read(96, &mut bytes));
    assert!(block.part(64, 36).is_some() && block.part(64, 37).is_none());
}

/// More buffers than a model has: each has 64 GiB of addresses to itself.
#[test]
fn fifteen_hundred_blocks_fit_and_the_places_are_used_again() {
    for _ in 0..2 {
        let blocks: Vec<_> = (0..1500).map(|_| Block::new(4096).expect("clang is there")).collect();
        assert!(blocks.iter().all(Option::is_some));
    }
}

/// The next test runs it in a process that has no clang.
#[test]
fn a_block_without_clang() {
    if std::env::var_os("LILY_CLANG").is_none_or(|clang| clang != NO_CLANG) {
        return;
    }
    let error = Block::new(16).map(drop).expect_err("there is no clang");
    println!("refused: {error}");
}

#[test]
fn without_clang_the_error_says_what_to_install() {
    let this = std::env::current_exe().expect("tests are files");
    let output = Command::new(this)
        .env("LILY_CLANG", NO_CLANG)
        .args(["--exact", "a_block_without_clang", "--nocapture"])
        .output()
        .expect("tests run");
    let text = String::from_utf8_lossy(&output.stdout);
    let expected = "refused: none of /no/clang++ runs; the MSL test device needs clang 19 or later: \
                    install it (`apt install clang-19`) or name it in LILY_CLANG";
    assert!(text.contains(expected), "{text}");
}
