//! Runs hot kernels of the CPU one after another and has callgrind count the instructions of each launch.
//! `scripts/check-instructions` runs it and compares the counts with `benches/instructions.tsv`. Alone it
//! prints the cases and counts nothing.

use std::error::Error;
use std::ffi::CString;

use lily_cpu::{CpuDevice, CpuOptions, Numerics};
use lily_kernels::ModelShape;
use lily_kernels::conformance::{Case, Contents, cases_at, chosen_cases, real_shape};
use lily_kernels::table;
use lily_plan::{Device, DeviceError, PlanId, RowFormat, Step, Weight, write_f32, write_i32};

/// Kernels in which a step spends its time: products, attention, the delta rule, the head.
const HOT: [&str; 17] = [
    "attn_flash",
    "attn_in",
    "attn_out",
    "attn_split",
    "experts_down",
    "experts_gate_up",
    "gdn_chunk_prepare",
    "gdn_chunk_scan",
    "gdn_conv",
    "gdn_in",
    "gdn_out",
    "gdn_scan",
    "gdn_step",
    "grouped_down",
    "grouped_gate_up",
    "head",
    "router",
];

fn main() -> Result<(), Box<dyn Error>> {
    // Heads as in the real model; matrices small enough for a tool that is fifty times slower.
    let shape = ModelShape {
        hidden: 512,
        vocab: 600,
        vocab_used: 590,
        q_heads: 4,
        kv_heads: 1,
        k_heads: 2,
        v_heads: 4,
        experts: 4,
        top_k: 2,
        inner: 256,
        ..real_shape()
    };
    for kernel in HOT {
        let build =
            || cases_at(vec![shape.clone()], || table::cases_of(|found| found.name == kernel));
        for case in chosen_cases(build, longest) {
            // Only products of quantised rows have two forms.
            let forms = [(Numerics::Int8, "int8"), (Numerics::Exact, "exact")];
            for (numerics, form) in forms.into_iter().take(1 + usize::from(is_quantised(&case))) {
                let options = CpuOptions { numerics, threads: 1, ..CpuOptions::default() };
                let mut device = CpuDevice::new(options);
                let plan = prepare(&mut device, &case)?;
                // The first run fills scratch memory, and finds out what a tile costs.
                device.run_launch(plan, 0)?;
                let name = format!("{form} {}", case.name);
                println!("{name}");
                callgrind::count(&name, || device.run_launch(plan, 0))?;
            }
        }
    }
    Ok(())
}

/// Most tokens of a chunk that is counted.
const MOST_TOKENS: usize = 100;

/// A decode step of one sequence and the longest chunk within the limit, with 4-bit matrices where there are
/// any.
fn longest(cases: Vec<Case>) -> Vec<Case> {
    let is_plain = |case: &Case| formats(case).is_empty() || kernel(case) == "router";
    let is_wanted = |case: &Case| is_plain(case) || formats(case) == [RowFormat::Q4];
    let (mut decode, mut prefill) = (None, None);
    for case in cases.into_iter().filter(is_wanted) {
        match case.plan.step() {
            Step::Decode { batch: 1 } if decode.is_none() => decode = Some(case),
            Step::Decode { .. } => {}
            Step::Prefill { tokens, .. } if tokens > MOST_TOKENS => {}
            Step::Prefill { tokens, .. } => {
                let longer = |before: &Case| tokens > before.plan.step().rows();
                if prefill.as_ref().is_none_or(longer) {
                    prefill = Some(case);
                }
            }
        }
    }
    decode.into_iter().chain(prefill).collect()
}

fn kernel(case: &Case) -> &str {
    case.plan.launches()[0].kernel
}

/// The formats of the matrices.
fn formats(case: &Case) -> Vec<RowFormat> {
    let matrices = case.weights.values().filter_map(|weight| match weight {
        Weight::Matrix(matrix) => Some(matrix.segments()[0].format),
        Weight::Vector(_) => None,
    });
    matrices.collect()
}

/// Whether 8-bit inputs make a difference; the router's product never takes them.
fn is_quantised(case: &Case) -> bool {
    kernel(case) != "router" && formats(case).into_iter().any(RowFormat::is_quantised)
}

fn prepare(device: &mut CpuDevice, case: &Case) -> Result<PlanId, DeviceError> {
    device.allocate(case.plan.buffers(), case.weights.clone())?;
    for ((id, _), contents) in case.plan.buffers().iter().zip(&case.contents) {
        match contents {
            Contents::Weight => {}
            Contents::Float(values) => write_f32(device, id, 0, values)?,
            Contents::Int(values) => write_i32(device, id, 0, values)?,
        }
    }
    device.compile(&case.plan)
}

/// Requests to callgrind, in the form in which valgrind looks for them: instructions that do nothing on a
/// processor.
#[cfg(target_arch = "x86_64")]
mod callgrind {
    use super::CString;

    /// Requests of callgrind, as its `callgrind.h` numbers them.
    const DUMP_STATS_AT: usize = 0x4354_0003;
    const START_INSTRUMENTATION: usize = 0x4354_0004;
    const STOP_INSTRUMENTATION: usize = 0x4354_0005;

    /// Runs something and has its instructions written down under a name.
    pub fn count<T>(name: &str, run: impl FnOnce() -> T) -> T {
        // Case names have no zero bytes.
        let name = CString::new(name).unwrap_or_default();
        request(START_INSTRUMENTATION, 0);
        let result = run();
        request(STOP_INSTRUMENTATION, 0);
        request(DUMP_STATS_AT, name.as_ptr() as usize);
        result
    }

    fn request(code: usize, argument: usize) {
        let arguments = [code, argument, 0, 0, 0, 0];
        // SAFETY: the rotations turn `rdi` around twice, by 128 bits, and the exchange is with itself.
        // Valgrind, where it runs this, reads the arguments and the text that one of them points to, and
        // writes `rdx`.
        unsafe {
            std::arch::asm!(
                "rol rdi, 3",
                "rol rdi, 13",
                "rol rdi, 61",
                "rol rdi, 51",
                "xchg rbx, rbx",
                in("rax") arguments.as_ptr(),
                inout("rdx") 0usize => _,
                out("rdi") _,
            );
        }
    }
}

/// Other processors run the cases and count nothing.
#[cfg(not(target_arch = "x86_64"))]
mod callgrind {
    pub fn count<T>(_name: &str, run: impl FnOnce() -> T) -> T {
        run()
    }
}
