//! `lily doctor`: what this machine has, every kernel against its reference, and a whole model.

mod machine;
mod model;
mod probe;
mod system;

use std::process::ExitCode;

use anyhow::Result;
use lily_kernels::conformance::{Bar, cases_in, chosen_cases, measure, smallest_of_each_kind};
use lily_kernels::table::{self, KERNELS, Kernel};
use lily_plan::{CompileTimes, Device};
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::output::{print, print_json};
use machine::{Machine, Patient};
use model::WholeModel;
use probe::Launches;
use system::System;

/// What was found.
#[derive(Serialize)]
struct Report {
    system: System,
    device: &'static str,
    machine: Machine,
    /// Measured on GPUs, once their kernels are right.
    launches: Option<Launches>,
    kernels: Vec<Row>,
    /// Where kernels are compiled at run time.
    compile_times: Option<CompileTimes>,
    /// A tiny model, once the kernels are right.
    model: Option<WholeModel>,
    /// Kernels that are not ok.
    failed: usize,
}

/// A kernel.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    ok: bool,
    cases: usize,
    failed_cases: usize,
    /// Largest relative rms difference from the reference, of the cases that agree.
    worst_error: f64,
    /// The first case that failed, and why.
    reason: Option<String>,
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let Patient { name, mut device, once, bar, machine } = machine::open(args.device)?;
    let system = System::look(args.device, name);
    if !args.json {
        print(format_args!(
            "{system}{:21} {name}\n{machine}\n{:21} {:>5} {:>12}\n",
            "device", "kernel", "cases", "worst error"
        ))?;
    }
    let mut kernels = Vec::new();
    for kernel in KERNELS {
        let row = examine(device.as_mut(), kernel, bar, args.full);
        if !args.json {
            print(line(&row))?;
        }
        kernels.push(row);
    }
    let failed = kernels.iter().filter(|row| !row.ok).count();
    // Wrong kernels say nothing about time. On the processor nothing waits for a launch.
    let has_launches = failed == 0 && matches!(name, "cuda" | "metal");
    let measure = || probe::measure(device.as_mut(), once);
    let launches = has_launches.then(measure).transpose()?;
    let compile_times = device.compile_times();
    let model = (failed == 0).then(|| WholeModel::examine(device, bar)).transpose()?;
    let ok = model.as_ref().is_some_and(WholeModel::is_ok);
    if args.json {
        print_json(&Report {
            system,
            device: name,
            machine,
            launches,
            kernels,
            compile_times,
            model,
            failed,
        })?;
    } else if let Some(model) = &model {
        print(model)?;
        if let Some(CompileTimes { front, back, functions, kept }) = compile_times {
            print(format_args!(
                "\n{:21} {functions} functions, {kept} of them kept: {front:.1} s to intermediate code, {back:.1} s to \
                 machine code, over all threads\n",
                "compiling"
            ))?;
        }
        if let Some(launches) = &launches {
            print(format_args!("\n{launches}"))?;
        }
        let verdict = if ok { "agrees" } else { "does not agree" };
        print(format_args!(
            "all {} kernels agree with their references, and a whole model {verdict}\n",
            kernels.len()
        ))?;
    } else {
        print(format_args!("{failed} of {} kernels failed\n", kernels.len()))?;
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the cases of a kernel: all, or the smallest of each kind.
fn examine(device: &mut dyn Device, kernel: &Kernel, bar: Bar, full: bool) -> Row {
    let precision = match bar {
        Bar::Bf16 => device.precision(),
        Bar::Exact | Bar::Int8 => bar.precision(),
    };
    let all = || cases_in(precision, || table::cases_of(|other| other.name == kernel.name));
    let cases = if full { all() } else { chosen_cases(all, smallest_of_each_kind) };
    let mut row = Row {
        name: kernel.name,
        ok: false,
        cases: cases.len(),
        failed_cases: 0,
        worst_error: 0.0,
        reason: None,
    };
    for case in &cases {
        match measure(device, case, bar) {
            Ok(error) => row.worst_error = row.worst_error.max(error),
            Err(reason) => {
                row.failed_cases += 1;
                row.reason.get_or_insert_with(|| format!("{}: {reason}", case.name));
            }
        }
    }
    // A kernel without a case was not looked at.
    row.ok = row.failed_cases == 0 && row.cases > 0;
    row
}

fn line(row: &Row) -> String {
    let verdict = match &row.reason {
        None if row.ok => "ok".into(),
        None => "FAILED: it has no case".into(),
        Some(reason) => format!("FAILED: {} cases, first {reason}", row.failed_cases),
    };
    format!("{:21} {:5} {:12.1e}  {verdict}\n", row.name, row.cases, row.worst_error)
}

#[cfg(test)]
mod tests {
    use lily_plan::Interpreter;

    use super::*;

    #[test]
    fn a_kernel_that_a_device_lacks_fails_with_its_reason() {
        let reference = |name: &str| match name {
            "topk" => None,
            name => table::reference(name),
        };
        let mut device = Interpreter::new(reference, Bar::Exact.precision(), false);
        let row = |name, device: &mut Interpreter| {
            examine(device, table::find(name).expect("a kernel"), Bar::Exact, false)
        };
        let good = row("router", &mut device);
        assert!(good.ok && good.cases > 0 && good.reason.is_none());
        assert!(line(&good).ends_with("ok\n"));
        let bad = row("topk", &mut device);
        assert!(!bad.ok && bad.failed_cases == bad.cases && bad.cases > 0);
        assert!(line(&bad).contains("FAILED: ") && line(&bad).contains("topk ("), "{}", line(&bad));
    }
}
