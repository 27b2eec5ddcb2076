//! Threads and order change no bit, and a fault stays inside its launch.

use std::sync::Arc;

use lily_cpu::{CpuDevice, CpuOptions, Numerics};
use lily_kernels::conformance::{Case, Contents};
use lily_kernels::table;
use lily_plan::{
    BufferKind, Buffers, Device, DeviceError, Plan, read_f32, read_i32, write_f32, write_i32,
};

/// Fills a device with a case's contents; the plan is compiled but not run.
fn prepare(device: &mut CpuDevice, case: &Case) -> Result<lily_plan::PlanId, DeviceError> {
    device.allocate(case.plan.buffers(), case.weights.clone())?;
    for ((id, _), contents) in case.plan.buffers().iter().zip(&case.contents) {
        match contents {
            Contents::Weight => {}
            Contents::Float(v) => write_f32(device, id, 0, v)?,
            Contents::Int(v) => write_i32(device, id, 0, v)?,
        }
    }
    device.compile(&case.plan)
}

/// All buffers but the weights, as bits.
fn contents(device: &mut CpuDevice, buffers: &Buffers) -> Vec<Vec<u32>> {
    let stored = buffers.iter().filter(|(_, b)| b.kind != BufferKind::Weight);
    let bits = |(id, buffer): (_, &lily_plan::Buffer)| {
        let n = buffer.elements();
        match buffer.element {
            lily_plan::Element::I32 => {
                read_i32(device, id, 0, n).expect("in bounds").iter().map(|&v| v as u32).collect()
            }
            _ => {
                read_f32(device, id, 0, n).expect("in bounds").iter().map(|v| v.to_bits()).collect()
            }
        }
    };
    stored.map(bits).collect()
}

fn run(device: &mut CpuDevice, case: &Case) -> Vec<Vec<u32>> {
    let plan = prepare(device, case).expect("a case can be compiled");
    device.submit(plan).expect("a case runs");
    device.wait().expect("a case runs");
    contents(device, case.plan.buffers())
}

#[test]
fn thread_counts_and_random_orders_give_the_same_bits() {
    for numerics in [Numerics::Exact, Numerics::Int8] {
        let device = |threads, shuffle| {
            CpuDevice::new(CpuOptions { numerics, threads, shuffle, ..CpuOptions::default() })
        };
        let mut one = device(1, None);
        let mut others = [device(2, None), device(4, Some(3))];
        for case in table::cases() {
            let want = run(&mut one, &case);
            for other in &mut others {
                let threads = other.threads();
                assert!(run(other, &case) == want, "{}: {threads} threads", case.name);
            }
        }
    }
}

/// A case whose launch writes past the end of a buffer, of one row instead of all.
fn faulty(case: Case) -> Case {
    let mut buffers = Buffers::new();
    let launch = case.plan.launches()[0].clone();
    let short = launch.bindings.iter().rfind(|b| b.write.is_some()).expect("a launch writes");
    for (id, buffer) in case.plan.buffers().iter() {
        let mut shape = buffer.shape.clone();
        if id == short.buffer {
            shape[0] = 1;
        }
        buffers.add(buffer.kind, buffer.name.clone(), buffer.element, shape);
    }
    let mut contents = case.contents;
    let elements = buffers.get(short.buffer).elements();
    if let Contents::Float(v) = &mut contents[short.buffer.index()] {
        v.truncate(elements);
    }
    let mut launch = launch;
    for binding in &mut launch.bindings {
        for access in binding.read.iter_mut().chain(&mut binding.write) {
            access.bound = lily_plan::Region::whole();
        }
    }
    let plan = Plan::new(case.plan.step(), Arc::new(buffers), vec![launch]);
    let plan = plan.expect("bounds are whole buffers");
    Case { plan: Arc::new(plan), contents, ..case }
}

#[test]
fn a_write_out_of_bounds_is_an_error_that_names_the_launch_and_the_device_works_on() {
    let gdn_in = || table::cases().into_iter().filter(|c| c.name.contains("gdn_in"));
    let of_many_rows = |c: &Case| c.plan.step().rows() == 70;
    let good = gdn_in().find(of_many_rows).expect("gdn_in has a case of 70 rows");
    let bad = faulty(gdn_in().find(of_many_rows).expect("as above"));
    for threads in [1, 2, 4] {
        let options = CpuOptions { threads, ..CpuOptions::default() };
        let mut device = CpuDevice::new(options);
        assert_eq!(device.threads(), threads);
        let plan = prepare(&mut device, &bad).unwrap();
        match device.submit(plan) {
            Err(DeviceError::Launch { kernel, launch, reason, .. }) => {
                assert_eq!((kernel.as_str(), launch), ("gdn_in", 0));
                assert!(reason.starts_with("write "), "{reason}");
            }
            other => panic!("need a launch error, found {other:?}"),
        }
        let plan = prepare(&mut device, &good).unwrap();
        device.submit(plan).unwrap();
        let got = contents(&mut device, good.plan.buffers());
        assert!(got == run(&mut CpuDevice::new(options), &good), "{threads} threads");
    }
}

#[test]
fn wrong_plans_and_launches_are_refused_with_a_reason() {
    let mut cases = table::cases().into_iter();
    let case = cases.next().expect("there are cases");
    let n = case.plan.buffers().len();
    let other = cases.find(|c| c.plan.buffers().len() != n).expect("kernels differ in buffers");
    let mut device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
    let refused = |result: Result<(), DeviceError>, part: &str| match result {
        Err(DeviceError::Usage(text)) => assert!(text.contains(part), "{text}"),
        result => panic!("need a usage error, found {result:?}"),
    };
    let plan = prepare(&mut device, &case).unwrap();
    refused(device.run_launch(plan, 1), "launch 1 of a plan of 1");
    device.allocate(case.plan.buffers(), case.weights.clone()).unwrap();
    refused(device.submit(plan), "compile it first");
    refused(device.compile(&other.plan).map(|_| ()), "allocate the plan's");
}

#[test]
fn two_devices_run_at_once() {
    let cases = || table::cases().into_iter().take(6);
    let options = CpuOptions { threads: 3, ..CpuOptions::default() };
    let mut device = CpuDevice::new(options);
    let want: Vec<_> = cases().map(|case| run(&mut device, &case)).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut device = CpuDevice::new(options);
                for (case, want) in cases().zip(&want) {
                    assert!(run(&mut device, &case) == *want, "{}", case.name);
                }
            });
        }
    });
}
