//! Every Metal text compiles to NVIDIA's machine code without spills. Needs NVRTC, but no GPU: skipped where NVRTC
//! is not found, unless `LILY_NVRTC` names it. `LILY_KERNELS=topk,head` compiles these kernels alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use lily_cuda::CudaError;
use lily_cuda::compiler::{Architecture, Compiler, Resources};
use lily_kernels::conformance::cases_in;
use lily_kernels::gpu::{Entry, Family, MatrixFormat, Products, Source, Target};
use lily_kernels::{SessionShape, table};
use lily_model::plan::{
    Choice, LengthBucket, PlanBuilder, PrefillEnd, config_matrix_bytes, declare, model_shape,
};
use lily_plan::{Buffer, Element, GROUP, Launch, Plan, Precision, Weight};
use lily_tests::plan_model::full_size_config;
use lily_tests::rig::all_fusions;

/// The Hopper generation with its own instructions, and the oldest one that is supported.
const CAPABILITIES: [u32; 2] = [90, 80];

#[test]
fn every_text_compiles_without_spills_at_the_real_models_shapes() {
    let mut variants = Variants::default();
    for plan in full_size_plans() {
        let format = |buffer: &Buffer| format_of(buffer);
        for launch in plan.launches() {
            let formats = launch.bindings.iter().map(|b| format(plan.buffers().get(b.buffer)));
            variants.add(launch, &formats.collect::<Vec<_>>());
        }
    }
    // One small shape of each function, whose sizes divide nothing.
    let mut small = Variants::default();
    small.add_cases();
    let mut seen = BTreeSet::new();
    for (key, source) in small.sources.into_iter().rev() {
        let products = key.constants.iter().find(|(name, _)| *name == "TENSOR_OPERATIONS");
        if seen.insert((source.function, key.capability, products.cloned())) {
            variants.sources.entry(key).or_insert(source);
        }
    }
    variants.compile();
}

#[test]
#[ignore = "all shapes of the conformance cases; minutes"]
fn every_text_compiles_without_spills_at_the_shapes_of_all_cases() {
    let mut variants = Variants::default();
    variants.add_cases();
    variants.compile();
}

/// A function with its constants, for a generation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Variant {
    function: &'static str,
    constants: Vec<(&'static str, String)>,
    capability: u32,
}

/// Each variant once.
#[derive(Default)]
struct Variants {
    sources: BTreeMap<Variant, Source>,
}

impl Variants {
    fn add(&mut self, launch: &Launch, formats: &[Option<MatrixFormat>]) {
        self.add_with(Products::SimdgroupMatrix, launch, formats);
    }

    fn add_with(&mut self, products: Products, launch: &Launch, formats: &[Option<MatrixFormat>]) {
        if !wanted(launch.kernel) {
            return;
        }
        for capability in CAPABILITIES {
            let target = Target { family: Family::Nvidia { capability }, products };
            let (face, entry) =
                target.entry(launch, 0, formats).expect("every launch has an entry");
            let source = || Source::assemble(launch.kernel, &face, &entry);
            let Entry { function, constants, .. } = &entry;
            let key = Variant { function, constants: constants.clone(), capability };
            self.sources.entry(key).or_insert_with(source);
        }
    }

    /// Every conformance case.
    fn add_cases(&mut self) {
        let build = || table::cases_of(|kernel| wanted(kernel.name));
        for case in cases_in(Precision::BF16_CHUNKS, build) {
            let format = |buffer: &Buffer| match case.weights.get(&buffer.name) {
                Some(Weight::Matrix(matrix)) => Some(MatrixFormat::of(matrix)),
                _ => None,
            };
            let launch = &case.plan.launches()[0];
            let formats = launch.bindings.iter().map(|b| format(case.plan.buffers().get(b.buffer)));
            let formats = formats.collect::<Vec<_>>();
            self.add(launch, &formats);
            // No plan for an NVIDIA GPU has this form, but it is a text like the others.
            self.add_with(Products::TensorOperations, launch, &formats);
        }
    }

    /// Compiles all of them and prints what they take of the chip.
    fn compile(&self) {
        let library = std::env::var_os("LILY_NVRTC").map(std::path::PathBuf::from);
        let compiler = Compiler::new(library.clone(), None);
        match compiler.nvrtc_version() {
            Ok((major, minor)) => println!("NVRTC {major}.{minor}"),
            Err(error @ CudaError::NoNvrtc { .. }) if library.is_none() => {
                println!("skipped: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        }
        let todo: Vec<_> = self.sources.iter().collect();
        let next = AtomicUsize::new(0);
        let lines = Mutex::new(BTreeMap::new());
        let failures = Mutex::new(Vec::new());
        let work = || {
            while let Some((variant, source)) = todo.get(next.fetch_add(1, Ordering::Relaxed)) {
                match compile(&compiler, variant, source) {
                    Ok(line) => drop(lines.lock().expect("no panic").insert(*variant, line)),
                    Err(failure) => failures.lock().expect("no panic").push(failure),
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..std::thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(work);
            }
            work();
        });
        println!("| function | for | registers | shared bytes | spilled bytes | constants |");
        println!("|---|---|---|---|---|---|");
        lines.into_inner().expect("no panic").values().for_each(|line| println!("{line}"));
        let failures = failures.into_inner().expect("no panic");
        assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    }
}

fn wanted(kernel: &str) -> bool {
    let filter = std::env::var("LILY_KERNELS").unwrap_or_default();
    filter.is_empty() || filter.split(',').any(|name| name == kernel)
}

/// The line of a variant in the table, or what is wrong with it.
fn compile(compiler: &Compiler, variant: &Variant, source: &Source) -> Result<String, String> {
    let Variant { function, constants, capability } = variant;
    let architecture = Architecture::of(capability / 10, capability % 10);
    let result = compiler.compile(function, source, &architecture);
    let report = result.map_err(|e| e.to_string())?.report;
    let name = architecture.name();
    let used = Resources::parse(&report)
        .ok_or_else(|| format!("{function} for {name}: the assembler reports no numbers"))?;
    let constants: Vec<_> =
        constants.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let constants = constants.join(", ");
    let Resources { registers, shared_bytes, spill_bytes } = used;
    if spill_bytes > 0 {
        return Err(format!("{function} for {name} spills {spill_bytes} bytes: {constants}"));
    }
    Ok(format!(
        "| {function} | {name} | {registers} | {shared_bytes} | {spill_bytes} | {constants} |"
    ))
}

/// Format of a matrix of the configuration: the narrowest that holds its bytes.
fn format_of(buffer: &Buffer) -> Option<MatrixFormat> {
    let Element::Matrix { total_bytes } = buffer.element else { return None };
    let weights = buffer.elements() as u64;
    let fits = |format: &MatrixFormat| {
        let pairs = if *format == MatrixFormat::Bf16 { 0 } else { weights / GROUP as u64 * 4 };
        total_bytes <= weights * u64::from(format.bits()) / 8 + pairs
    };
    let formats = [MatrixFormat::Q4, MatrixFormat::Q8, MatrixFormat::Bf16];
    Some(formats.into_iter().find(fits).expect("no format is wider"))
}

/// Every kind of plan of Qwen3.6-35B-A3B, from its configuration.
fn full_size_plans() -> Vec<Plan> {
    let config = full_size_config();
    let (shape, bytes) = (model_shape(&config), config_matrix_bytes(&config));
    let mut plans = Vec::new();
    for batch in [1, 2, 4] {
        let session = SessionShape {
            batch,
            tokens: 2048,
            capacity: 32_768,
            run_ahead: 1,
            splits: 64,
            ring: 64,
            logit_rows: 2048,
            precision: Precision::BF16_CHUNKS,
        };
        let buffers = declare(&shape, &session, &bytes);
        for fusions in all_fusions() {
            let builder = PlanBuilder::new(&shape, &session, &buffers, fusions);
            for length in [100, 2000, 20_000] {
                for choice in [Choice::Device, Choice::Draw] {
                    let plan = builder.decode(LengthBucket::new(length, fusions), choice);
                    plans.push(plan.expect("a valid plan"));
                }
            }
        }
        if batch > 1 {
            continue;
        }
        let builder = PlanBuilder::new(&shape, &session, &buffers, all_fusions()[0]);
        for tokens in [1, 7, 16, 64, 512, 2048] {
            for end in [PrefillEnd::Sample, PrefillEnd::Draw, PrefillEnd::AllLogits] {
                plans.push(builder.prefill(tokens, 0, end).expect("a valid plan"));
            }
        }
    }
    plans
}
