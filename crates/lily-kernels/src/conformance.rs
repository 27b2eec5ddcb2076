//! Conformance of kernels: one launch on a device against its reference.
//!
//! A [`Case`] is a plan of one launch with random contents. [`check`] asserts that the device writes
//! what the reference writes, within a stated tolerance and nothing else; that memory outside of the
//! declared exact reads changes nothing; and that two runs agree bit for bit.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lily_plan::{
    Access, BufferId, BufferKind, Buffers, Device, DeviceError, Element, Interpreter, Launch, Live,
    Memory, Plan, Precision, RowFormat, Step, Weight, Weights, control, on_threads,
};

use crate::shape::{LaunchContext, Mixer, ModelShape, SessionShape};
use crate::table::{self, Kernel};

mod builder;
mod face;
mod random;

pub use builder::{
    CaseBuilder, decode_steps, few, long_product_step, long_shapes, prefill_steps, product_steps,
    real_shape, small_shapes,
};
pub use face::{run_face, run_reference};
pub use random::{random_cases, random_shape};

/// Largest relative rms difference of any written buffer.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// For devices that compute in f32.
    pub exact: f32,
    /// For 8-bit inputs of matrix products.
    pub int8: f32,
    /// For bfloat16 inputs.
    pub bf16: f32,
}

impl Tolerance {
    /// For kernels without a matrix product.
    pub const PLAIN: Self = Self { exact: 2e-5, int8: 2e-5, bf16: 5e-3 };
    /// For kernels whose results are integers, copies or choices.
    pub const SAME: Self = Self { exact: 0.0, int8: 0.0, bf16: 0.0 };

    /// For matrix products. Inputs rounded to 8 bits by groups of 64 normal values (largest about
    /// 2.5 sigma) carry a relative error of 2.5 / 127 / sqrt(12) = 0.6 %; plain matrices are
    /// multiplied in f32 everywhere.
    pub fn product(format: RowFormat) -> Self {
        let int8 = if format.is_quantised() { 1.5e-2 } else { 2e-5 };
        Self { exact: 2e-5, int8, bf16: 1e-2 }
    }
}

/// One launch with contents.
pub struct Case {
    /// Kernel, shapes and formats.
    pub name: String,
    /// A plan of this launch alone.
    pub plan: Arc<Plan>,
    /// Weights by buffer name.
    pub weights: Weights,
    /// Contents of every buffer but the weights.
    pub contents: Vec<Contents>,
    /// Allowed differences.
    pub tolerance: Tolerance,
    /// Tells it from other cases of one build.
    pub number: usize,
}

/// Contents of a buffer; floats of bfloat16 buffers are rounded values.
#[derive(Clone, Debug, PartialEq)]
pub enum Contents {
    /// Bound to the checkpoint.
    Weight,
    /// f32 or bfloat16 elements.
    Float(Vec<f32>),
    /// i32 elements.
    Int(Vec<i32>),
}

/// Which of a case's tolerances applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bar {
    /// f32 throughout.
    Exact,
    /// 8-bit inputs.
    Int8,
    /// bfloat16 inputs.
    Bf16,
}

impl Bar {
    /// Element types of the devices that this bar is for.
    pub fn precision(self) -> Precision {
        match self {
            Self::Exact | Self::Int8 => Precision::EXACT,
            Self::Bf16 => Precision::BF16,
        }
    }
}

thread_local! {
    /// Empty: the small shapes.
    static CASE_SHAPES: RefCell<Vec<ModelShape>> = const { RefCell::new(Vec::new()) };
    static CASE_PRECISION: Cell<Precision> = const { Cell::new(Precision::EXACT) };
    /// The cases that get random contents, by number; `None`: all do.
    static CASES_FILLED: RefCell<Option<BTreeSet<usize>>> = const { RefCell::new(None) };
    /// Builders made so far.
    static CASE_COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Element types of the cases that are being built.
fn case_precision() -> Precision {
    CASE_PRECISION.get()
}

/// The cases that `build` makes, at these dimensions instead of [`small_shapes`].
pub fn cases_at(shapes: Vec<ModelShape>, build: impl FnOnce() -> Vec<Case>) -> Vec<Case> {
    let before = CASE_SHAPES.replace(shapes);
    let cases = build();
    CASE_SHAPES.set(before);
    cases
}

/// The cases that `build` makes and `choose` keeps. Contents are made for these only: `choose` sees zeros in most buffers.
pub fn chosen_cases(
    build: impl Fn() -> Vec<Case>,
    choose: impl FnOnce(Vec<Case>) -> Vec<Case>,
) -> Vec<Case> {
    let with = |filled: &BTreeSet<usize>| {
        let before = CASES_FILLED.replace(Some(filled.clone()));
        let count = CASE_COUNT.replace(0);
        let cases = build();
        CASE_COUNT.set(count);
        CASES_FILLED.set(before);
        cases
    };
    let chosen = choose(with(&BTreeSet::new()));
    let numbers = chosen.iter().map(|case| case.number).collect();
    drop(chosen);
    with(&numbers).into_iter().filter(|case| numbers.contains(&case.number)).collect()
}

/// The cases that `build` makes, with buffers and arguments for these element types.
pub fn cases_in(precision: Precision, build: impl FnOnce() -> Vec<Case>) -> Vec<Case> {
    let before = CASE_PRECISION.replace(precision);
    let cases = build();
    CASE_PRECISION.set(before);
    cases
}

/// Runs every case of every kernel on devices made by `device`; panics with all failures.
pub fn check_all(bar: Bar, device: impl Fn() -> Box<dyn Device>) {
    let cases = cases_in(bar.precision(), table::cases);
    require_every_kernel(&cases);
    let failed = |case: &Case| {
        let reason = check(device().as_mut(), case, bar).err()?;
        Some(format!("{}: {reason}", case.name))
    };
    let failures: Vec<String> = cases.iter().filter_map(failed).collect();
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
}

/// The kernels that `LILY_KERNELS` names (`topk,head`), all without it.
///
/// # Panics
/// If it names another one.
pub fn named_kernels() -> Vec<&'static Kernel> {
    let filter = std::env::var("LILY_KERNELS").unwrap_or_default();
    if filter.is_empty() {
        return table::KERNELS.iter().collect();
    }
    let named = |name| {
        table::find(name).unwrap_or_else(|| panic!("LILY_KERNELS names {name}, which is no kernel"))
    };
    filter.split(',').map(named).collect()
}

/// Cases of the [`named_kernels`]. Panics if one has no case.
pub fn named_cases() -> Vec<Case> {
    let kernels = named_kernels();
    let cases = table::cases_of(|kernel| kernels.iter().any(|named| named.name == kernel.name));
    let has_case =
        |kernel: &&Kernel| cases.iter().any(|case| case.plan.launches()[0].kernel == kernel.name);
    let missing: Vec<_> =
        kernels.iter().filter(|kernel| !has_case(kernel)).map(|k| k.name).collect();
    assert!(missing.is_empty(), "kernels without a case: {missing:?}");
    cases
}

/// Runs cases on one device, so that a kernel is compiled once, and gives all failures; kernels and failures are
/// printed on the way. The references run on all processors.
pub fn failures_on(device: &mut dyn Device, cases: &[Case], bar: Bar) -> Vec<String> {
    let mut failures = Vec::new();
    let mut last = "";
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    // Results of some cases at a time: those of all would fill the memory.
    for some in cases.chunks(4 * threads) {
        for (case, want) in some.iter().zip(all_wanted(some, threads)) {
            let kernel = case.plan.launches()[0].kernel;
            if kernel != last {
                println!("{kernel}");
                last = kernel;
            }
            let checked = want.and_then(|want| measure_against(&want, device, case, bar));
            if let Err(reason) = checked {
                println!("{}: {reason}", case.name);
                failures.push(format!("{}: {reason}", case.name));
            }
        }
    }
    failures
}

/// [`wanted`] of every case.
fn all_wanted(cases: &[Case], threads: usize) -> Vec<Result<Vec<Contents>, String>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut own = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(index) else { return own };
            own.push((index, wanted(case)));
        }
    };
    let workers = threads.min(cases.len());
    let mut results: Vec<_> = on_threads(workers, work).into_iter().flatten().collect();
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, want)| want).collect()
}

fn require_every_kernel(cases: &[Case]) {
    let kernels: BTreeSet<&str> = cases.iter().map(|c| c.plan.launches()[0].kernel).collect();
    let missing: Vec<_> =
        table::KERNELS.iter().map(|k| k.name).filter(|k| !kernels.contains(k)).collect();
    assert!(missing.is_empty(), "kernels without a case: {missing:?}");
}

/// Checks one case; the error says what differs.
pub fn check(device: &mut dyn Device, case: &Case, bar: Bar) -> Result<(), String> {
    measure(device, case, bar).map(drop)
}

/// Checks one case and gives the largest relative rms difference of what it writes; the error says
/// what differs.
pub fn measure(device: &mut dyn Device, case: &Case, bar: Bar) -> Result<f64, String> {
    measure_against(&wanted(case)?, device, case, bar)
}

/// What the reference leaves in every buffer of a case, for [`measure_against`] on several devices.
pub fn wanted(case: &Case) -> Result<Vec<Contents>, String> {
    let mut oracle = Interpreter::new(table::reference, precision(case), true);
    run(&mut oracle, case, &case.contents).map_err(|e| e.to_string())
}

/// [`measure`] with the reference's result at hand.
pub fn measure_against(
    want: &[Contents],
    device: &mut dyn Device,
    case: &Case,
    bar: Bar,
) -> Result<f64, String> {
    let text = |e: DeviceError| e.to_string();
    let got = run(device, case, &case.contents).map_err(text)?;
    let memory = ContentsMemory(&case.contents);
    let launch = &case.plan.launches()[0];
    let live = live(&case.plan, &memory);
    let written = mask(&case.plan, launch, &live, |b| b.write.as_ref());
    let tolerance = match bar {
        Bar::Exact => case.tolerance.exact,
        Bar::Int8 => case.tolerance.int8,
        Bar::Bf16 => case.tolerance.bf16,
    };
    let mut worst = 0f64;
    for (id, buffer) in case.plan.buffers().iter() {
        let i = id.index();
        let error = compare(&want[i], &got[i], &case.contents[i], &written[i], tolerance)
            .map_err(|e| format!("{}: {e}", buffer.name))?;
        worst = worst.max(error);
    }
    let read = mask(&case.plan, launch, &live, |b| b.read.as_ref());
    let poisoned: Vec<Contents> =
        case.contents.iter().zip(&read).map(|(c, keep)| poison(c, keep)).collect();
    let again = run(device, case, &poisoned).map_err(text)?;
    for (id, buffer) in case.plan.buffers().iter() {
        let i = id.index();
        let differs = |e: usize| written[i][e] && !same(&got[i], &again[i], e);
        if let Some(e) = (0..written[i].len()).find(|&e| differs(e)) {
            return Err(format!(
                "{}: element {e} depends on memory outside of the declared reads",
                buffer.name
            ));
        }
    }
    Ok(worst)
}

/// The smallest case of every kernel for each kind of step, element type and weight format.
pub fn smallest_of_each_kind(cases: impl IntoIterator<Item = Case>) -> Vec<Case> {
    smallest_by(cases, |case| {
        let formats: Vec<String> = case.weights.values().map(format_name).collect();
        let launch = &case.plan.launches()[0];
        let (prefill, precision) = (case.plan.step().is_prefill(), precision(case));
        format!("{}, {prefill}, {precision:?}, {formats:?}", launch.kernel)
    })
}

/// The smallest case for each key; of equal ones the first.
fn smallest_by(cases: impl IntoIterator<Item = Case>, key: impl Fn(&Case) -> String) -> Vec<Case> {
    let mut smallest: BTreeMap<String, Case> = BTreeMap::new();
    for case in cases {
        let key = key(&case);
        match smallest.get(&key) {
            Some(known) if elements(known) <= elements(&case) => {}
            _ => drop(smallest.insert(key, case)),
        }
    }
    smallest.into_values().collect()
}

fn format_name(weight: &Weight) -> String {
    match weight {
        Weight::Vector(_) => "vector".into(),
        Weight::Matrix(matrix) => format!("{:?}", matrix.segments()[0].format),
    }
}

fn elements(case: &Case) -> usize {
    case.plan.buffers().iter().map(|(_, buffer)| buffer.elements()).sum()
}

/// Contents of every buffer around one launch of a plan.
pub struct Around<'a> {
    /// Before the launch; exact ranges follow from them.
    pub before: &'a [Contents],
    /// After its reference.
    pub want: &'a [Contents],
    /// After a device ran it on the same contents.
    pub got: &'a [Contents],
}

/// Compares one launch of any plan with its reference: what it writes within `tolerance`, everything
/// else bit for bit. Buffers given as [`Contents::Weight`] are left out; those that the launch binds,
/// the control block and the prompt are needed. The error says what differs.
pub fn compare_launch(
    plan: &Plan,
    launch: &Launch,
    around: &Around<'_>,
    tolerance: f32,
) -> Result<(), String> {
    let memory = ContentsMemory(around.before);
    let written = mask(plan, launch, &live(plan, &memory), |b| b.write.as_ref());
    for (id, buffer) in plan.buffers().iter() {
        let i = id.index();
        let (want, got, before) = (&around.want[i], &around.got[i], &around.before[i]);
        if *before == Contents::Weight {
            continue;
        }
        compare(want, got, before, &written[i], tolerance)
            .map_err(|e| format!("{}: {e}", buffer.name))?;
    }
    Ok(())
}

fn precision(case: &Case) -> Precision {
    let any_bf16 = case.plan.buffers().iter().any(|(_, b)| b.element == Element::Bf16);
    if any_bf16 { Precision::BF16 } else { Precision::EXACT }
}

/// Runs a case with these contents; gives the contents of every buffer afterwards.
pub fn run(
    device: &mut dyn Device,
    case: &Case,
    contents: &[Contents],
) -> Result<Vec<Contents>, DeviceError> {
    let buffers = case.plan.buffers();
    device.allocate(buffers, case.weights.clone())?;
    let plan = device.compile(&case.plan)?;
    for ((id, _), contents) in buffers.iter().zip(contents) {
        match contents {
            Contents::Weight => {}
            Contents::Float(v) => lily_plan::write_f32(device, id, 0, v)?,
            Contents::Int(v) => lily_plan::write_i32(device, id, 0, v)?,
        }
    }
    device.submit(plan)?;
    device.wait()?;
    let mut out = Vec::new();
    for ((id, buffer), contents) in buffers.iter().zip(contents) {
        out.push(match contents {
            Contents::Weight => Contents::Weight,
            Contents::Float(_) => {
                Contents::Float(lily_plan::read_f32(device, id, 0, buffer.elements())?)
            }
            Contents::Int(_) => {
                Contents::Int(lily_plan::read_i32(device, id, 0, buffer.elements())?)
            }
        });
    }
    Ok(out)
}

struct ContentsMemory<'a>(&'a [Contents]);

impl Memory for ContentsMemory<'_> {
    fn f32(&self, buffer: BufferId) -> &[f32] {
        match &self.0[buffer.index()] {
            Contents::Float(v) => v,
            _ => &[],
        }
    }

    fn i32(&self, buffer: BufferId) -> &[i32] {
        match &self.0[buffer.index()] {
            Contents::Int(v) => v,
            _ => &[],
        }
    }
}

fn live<'a>(plan: &Plan, memory: &'a ContentsMemory<'a>) -> Live<'a> {
    let find = |name: &str| plan.buffers().find(name).map_or(&[][..], |id| memory.i32(id));
    Live::new(plan.step(), find("control"), find("prompt"), Some(memory))
}

/// Elements of every buffer inside the exact ranges picked from the launch's bindings.
fn mask<'a>(
    plan: &Plan,
    launch: &'a Launch,
    live: &Live<'_>,
    pick: impl Fn(&'a lily_plan::Binding) -> Option<&'a Access>,
) -> Vec<Vec<bool>> {
    let weight = |b: &lily_plan::Buffer| b.kind == BufferKind::Weight;
    let empty = |b: &lily_plan::Buffer| if weight(b) { 0 } else { b.elements() };
    let mut masks: Vec<Vec<bool>> =
        plan.buffers().iter().map(|(_, b)| vec![false; empty(b)]).collect();
    for binding in &launch.bindings {
        let buffer = plan.buffers().get(binding.buffer);
        if let (Some(access), false) = (pick(binding), weight(buffer)) {
            for region in access.exact(live) {
                region.for_each_run(&buffer.shape, |run| {
                    masks[binding.buffer.index()][run].fill(true);
                });
            }
        }
    }
    masks
}

/// Gives the relative rms difference inside of `written`.
fn compare(
    want: &Contents,
    got: &Contents,
    before: &Contents,
    written: &[bool],
    tolerance: f32,
) -> Result<f64, String> {
    let outside = |e: usize| !written[e] && !same(got, before, e);
    if let Some(e) = (0..written.len()).find(|&e| outside(e)) {
        return Err(format!("element {e} outside of the declared writes has changed"));
    }
    match (want, got) {
        (Contents::Float(want), Contents::Float(got)) => {
            let (mut error, mut size) = (0f64, 0f64);
            for e in (0..written.len()).filter(|&e| written[e]) {
                if !got[e].is_finite() && got[e] != want[e] {
                    return Err(format!("element {e} is {}, need {}", got[e], want[e]));
                }
                if want[e].is_finite() {
                    error += f64::from(got[e] - want[e]).powi(2);
                    size += f64::from(want[e]).powi(2);
                }
            }
            let relative = if error == 0.0 { 0.0 } else { (error / size).sqrt() };
            if relative > f64::from(tolerance) {
                return Err(format!("relative rms {relative:.2e}, allowed {tolerance:.0e}"));
            }
            return Ok(relative);
        }
        (Contents::Int(want), Contents::Int(got)) => {
            if let Some(e) = (0..written.len()).find(|&e| written[e] && got[e] != want[e]) {
                return Err(format!("element {e} is {}, need {}", got[e], want[e]));
            }
        }
        _ => {}
    }
    Ok(0.0)
}

fn same(a: &Contents, b: &Contents, element: usize) -> bool {
    match (a, b) {
        (Contents::Float(a), Contents::Float(b)) => a[element].to_bits() == b[element].to_bits(),
        (Contents::Int(a), Contents::Int(b)) => a[element] == b[element],
        _ => true,
    }
}

fn poison(contents: &Contents, keep: &[bool]) -> Contents {
    match contents {
        Contents::Weight => Contents::Weight,
        Contents::Float(v) => Contents::Float(
            v.iter().zip(keep).map(|(&v, &k)| if k { v } else { f32::NAN }).collect(),
        ),
        Contents::Int(v) => Contents::Int(
            v.iter().zip(keep).map(|(&v, &k)| if k { v } else { i32::MIN / 3 }).collect(),
        ),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cpu::Numerics;
    use crate::table::Kernel;

    fn bytes(contents: &Contents) -> &[u8] {
        match contents {
            Contents::Weight => &[],
            Contents::Float(values) => bytemuck::cast_slice(values),
            Contents::Int(values) => bytemuck::cast_slice(values),
        }
    }

    /// Cases and numerics that reach all of a face's code, small enough for the time there is.
    fn runs(kernel: &Kernel) -> Vec<(Case, Vec<Numerics>)> {
        let cases = table::cases_of(|k| k.name == kernel.name);
        let cases = match cfg!(miri) {
            // The faces' unsafe code takes elements out of buffers, whatever the weights' format.
            // What depends on it is safe code, and the tests of products run each.
            true => smallest_by(cases, |case| {
                let bindings = case.plan.launches()[0].bindings.len();
                format!("{bindings}, {}, {:?}", case.plan.step().is_prefill(), precision(case))
            }),
            false => smallest_of_each_kind(cases),
        };
        let is_quantised = |weight: &Weight| match weight {
            Weight::Vector(_) => false,
            Weight::Matrix(m) => m.segments()[0].format.is_quantised(),
        };
        let numerics = |case: &Case| match case.weights.values().any(is_quantised) {
            true if cfg!(miri) => vec![Numerics::Int8],
            true => vec![Numerics::Exact, Numerics::Int8],
            // The two are the same code.
            false => vec![Numerics::Exact],
        };
        cases.into_iter().map(|case| (numerics(&case), case)).map(|(n, case)| (case, n)).collect()
    }

    /// Under Miri this is where the unsafe code of every kernel runs, with the portable vectors; the
    /// elements are looked at elsewhere, because that alone would take it minutes.
    pub(crate) fn check_face(kernel: &Kernel) {
        let mut wrote = false;
        let cases = runs(kernel);
        assert!(!cases.is_empty(), "{} has no case", kernel.name);
        for (case, numerics) in cases {
            let launch = &case.plan.launches()[0];
            assert_eq!(launch.kernel, kernel.name);
            let memory = ContentsMemory(&case.contents);
            let live = live(&case.plan, &memory);
            let written = match cfg!(miri) {
                true => Vec::new(),
                false => mask(&case.plan, launch, &live, |b| b.write.as_ref()),
            };
            for numerics in numerics {
                let after = run_face(&case, numerics);
                wrote |= case.contents.iter().zip(&after).any(|(b, a)| bytes(b) != bytes(a));
                for (i, written) in written.iter().enumerate() {
                    let stray = |e: &usize| !written[*e] && !same(&case.contents[i], &after[i], *e);
                    let stray = (0..written.len()).find(stray);
                    assert_eq!(stray, None, "{}: buffer {i}", case.name);
                }
            }
        }
        // Zeros in, zeros out: under Miri some change nothing.
        assert!(cfg!(miri) || wrote, "{} wrote nothing", kernel.name);
    }
}
