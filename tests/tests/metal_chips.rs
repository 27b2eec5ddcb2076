//! Macs that are not there: every chip's limits against every kernel variant, memory of every machine size,
//! and what is predicted for the full-size model. Needs no Mac.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;

use lily_kernels::gpu::{Products, Source, Target, add_entries};
use lily_kernels::{SessionShape, table};
use lily_metal::budget::{Budget, DeviceMemory};
use lily_metal::chip::{CHIPS, Footprint, Gpu, GpuFamily, OsVersion, Policy, SelfTest};
use lily_metal::chip::{THREADGROUP_BYTES, Variant, choose_products};
use lily_metal::encoder::{DecodeSubmission, Estimate, Pace, SUBMISSION_SECONDS};
use lily_metal::predict::{Bound, Prediction, predict};
use lily_model::Config;
use lily_model::engine::{MemoryPlan, chunk_at, largest_context, whole_plan};
use lily_model::plan::{Choice, LengthBucket, PlanBuilder, PrefillEnd, splits};
use lily_msl_test::{Build, CompileError, compile};
use lily_plan::{BufferKind, Fusions, Live, Plan, PlanTable, control};
use lily_tests::plan_model::PlanModel;
use lily_tests::rig::all_fusions;
use lily_tests::{GOLDEN, Golden};

/// The newest system that the chip table knows of.
const SYSTEM: OsVersion = OsVersion { major: 26, minor: 4 };

/// A model with its plans.
struct Model(PlanModel);

impl Model {
    fn full_size() -> Self {
        Self(PlanModel::full_size())
    }

    fn golden(name: &str) -> Self {
        let config = Config::read(&Golden::open(name).folder).expect("the golden configuration");
        Self(PlanModel::new(&config))
    }

    fn decode(&self, batch: usize, position: usize, fusions: Fusions) -> Plan {
        let session = self.0.session(batch, 1);
        let buffers = self.0.buffers(&session);
        let builder = PlanBuilder::new(&self.0.shape, &session, &buffers, fusions);
        let bucket = LengthBucket::new(position + batch, fusions);
        builder.decode(bucket, Choice::Device).expect("a valid plan")
    }

    fn prefill(&self, tokens: usize, end: PrefillEnd) -> Plan {
        let mut session = self.0.session(1, tokens);
        session.logit_rows = if end == PrefillEnd::AllLogits { tokens } else { 1 };
        let buffers = self.0.buffers(&session);
        let builder = PlanBuilder::new(&self.0.shape, &session, &buffers, Fusions::default());
        builder.prefill(tokens, 0, end).expect("a valid plan")
    }

    fn weight_bytes(&self) -> u64 {
        let session = self.0.session(1, 1);
        self.0.buffers(&session).table.bytes(BufferKind::Weight)
    }

    /// Every kind of plan.
    fn plans(&self, chunks: &[usize]) -> Vec<Plan> {
        let mut plans = Vec::new();
        for fusions in all_fusions() {
            for (batch, position) in [(1, 100), (1, 2000), (1, 20_000), (2, 2000), (4, 100)] {
                plans.push(self.decode(batch, position.min(self.0.context - batch - 1), fusions));
            }
        }
        for &tokens in chunks {
            for end in [PrefillEnd::Sample, PrefillEnd::AllLogits, PrefillEnd::More] {
                plans.push(self.prefill(tokens, end));
            }
        }
        plans
    }

    /// The plan with its costs at a position, and what `target` runs for it.
    fn printed(&self, plan: &Plan, position: usize, target: Target) -> PlanTable {
        let rows = plan.step().rows();
        let count = if plan.step().is_prefill() { rows } else { 1 };
        let mut row = vec![0; control::WORDS];
        (row[control::POSITION], row[control::COUNT]) = (position as i32, count as i32);
        let prompt: Vec<i32> = (0..count as i32).collect();
        let mut table = PlanTable::new(plan, &Live::new(plan.step(), &row, &prompt, None));
        add_entries(&mut table, plan, &self.0.formats, target)
            .expect("the target runs every launch");
        table
    }

    fn predict(&self, plan: &Plan, position: usize, gpu: &Gpu, products: Products) -> Prediction {
        let table = self.printed(plan, position, Policy::new(gpu, products).target);
        let tokens = if plan.step().is_prefill() { plan.step().rows() } else { 1 };
        predict(&table, tokens, gpu, products)
    }
}

/// What lily would choose for every variant of every chip.
fn all_policies() -> Vec<(Gpu, Policy)> {
    let gpus = CHIPS.iter().flat_map(|chip| chip.variants.iter().map(|v| chip.gpu(v)));
    let unknown = Gpu::of_device("Apple Paravirtual device", GpuFamily::Apple7, None);
    let policy = |gpu: Gpu| {
        let products = choose_products(SYSTEM, gpu.family, SelfTest::Passed).products;
        let policy = Policy::new(&gpu, products);
        (gpu, policy)
    };
    gpus.chain([unknown]).map(policy).collect()
}

/// Each function with its constants once, with the threads that it is launched with.
type Variants = BTreeMap<(&'static str, Vec<(&'static str, String)>), (Source, BTreeSet<u32>)>;

fn add_variants(variants: &mut Variants, model: &Model, plan: &Plan, target: Target) {
    for (index, launch) in plan.launches().iter().enumerate() {
        let format =
            |b: &lily_plan::Binding| model.0.formats.get(&plan.buffers().get(b.buffer).name);
        let formats: Vec<_> = launch.bindings.iter().map(|b| format(b).copied()).collect();
        let (face, entry) = target.entry(launch, index, &formats).expect("an entry");
        let (_, threads) = variants
            .entry((entry.function, entry.constants.clone()))
            .or_insert_with(|| (Source::assemble(launch.kernel, &face, &entry), BTreeSet::new()));
        threads.insert(entry.threads);
        assert!(entry.grid.iter().all(|&n| n > 0), "{}: grid {:?}", launch.kernel, entry.grid);
    }
}

#[test]
fn every_kernel_variant_runs_within_the_limits_of_every_chip() {
    let policies = all_policies();
    let targets: BTreeSet<_> = policies.iter().map(|(_, p)| p.target.products as u8).collect();
    assert_eq!(targets.len(), 2, "chips of both forms of products");
    let mut chunks: Vec<usize> = policies.iter().map(|(_, policy)| policy.chunk).collect();
    chunks.extend([1, 7, 16, 64, 512]);
    chunks.sort_unstable();
    chunks.dedup();
    let mut variants = Variants::new();
    let small = [1, 7, 16, 64];
    let models = GOLDEN.iter().map(|name| (Model::golden(name), &small[..]));
    for (model, chunks) in models.chain([(Model::full_size(), &chunks[..])]) {
        for plan in model.plans(chunks) {
            let mut seen = Vec::new();
            for (_, policy) in &policies {
                if !seen.contains(&policy.target) {
                    seen.push(policy.target);
                    add_variants(&mut variants, &model, &plan, policy.target);
                }
            }
        }
    }
    let mut faults = Vec::new();
    let mut largest = Vec::new();
    for ((function, constants), (source, threads)) in &variants {
        match Footprint::of(source) {
            Err(error) => faults.push(error.to_string()),
            Ok(footprint) => {
                largest.push((footprint.threadgroup_bytes, *function));
                for &threads in threads {
                    if let Err(reason) = footprint.check(threads) {
                        faults.push(format!("{function}: {reason}; {constants:?}"));
                    }
                }
            }
        }
    }
    largest.sort_unstable();
    largest.reverse();
    largest.dedup_by_key(|(_, function)| *function);
    println!("{} variants; most threadgroup memory: {:?}", variants.len(), &largest[..6]);
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    // Every kernel was looked at: none of them has fewer functions than one.
    let kernels = variants.values().count();
    assert!(kernels >= table::KERNELS.len(), "{kernels} variants");
    // A footprint that reads nothing would pass everything.
    assert!(largest[0].0 > THREADGROUP_BYTES / 2, "{largest:?}");
}

/// Sizes read from the text are those that a compiler gives.
#[test]
fn footprints_agree_with_a_compiler() {
    let model = Model::golden("heads");
    let mut variants = Variants::new();
    for plan in [model.decode(1, 100, Fusions::default()), model.prefill(64, PrefillEnd::Sample)] {
        add_variants(&mut variants, &model, &plan, Target::APPLE);
    }
    let mut sources: Vec<_> = variants.values().map(|(source, _)| source).collect();
    sources.sort_by_key(|source| std::cmp::Reverse(arrays(source).len()));
    for source in &sources[..4] {
        let arrays = arrays(source);
        assert!(arrays.len() >= 3, "{}: {arrays:?}", source.function);
        let bytes = Footprint::of(source).expect("a footprint").threadgroup_bytes;
        let size = |(name, _): &(String, String)| format!("(sizeof({name}) + 15) / 16 * 16");
        let sum = arrays.iter().map(size).collect::<Vec<_>>().join(" + ");
        let last = &arrays[arrays.len() - 1].1;
        let with = |bytes: u32| {
            let check = format!("{last}\n    static_assert({sum} == {bytes}, \"footprint\");");
            let text = source.text.replacen(last, &check, 1);
            compile(&Source::metal(text, source.function), Build::Fast)
        };
        match with(bytes) {
            Err(CompileError::Clang(reason)) => return println!("skipped: {reason}"),
            Err(error) => panic!("{}: {bytes} bytes: {error}", source.function),
            Ok(_) => {}
        }
        // The compiler looked at the sum.
        assert!(matches!(with(bytes + 16), Err(CompileError::Text(_))), "{}", source.function);
    }
}

/// Name and line of each array in the function's threadgroup memory.
fn arrays(source: &Source) -> Vec<(String, String)> {
    let start = source.text.find(&format!("void {}(", source.function)).expect("the function");
    let body = &source.text[start..];
    let body = body.find("\n}").map_or(body, |end| &body[..end]);
    let declared = body.lines().filter_map(|line| {
        let code = line.split("//").next()?.trim();
        let (before, _) = code.strip_prefix("threadgroup ")?.split_once('[')?;
        // A type and a name: no pointer, no parameter.
        let mut words = before.split_whitespace();
        let (_, name, None) = (words.next()?, words.next()?, words.next()) else { return None };
        code.ends_with("];").then(|| (name.to_owned(), line.to_owned()))
    });
    declared.collect()
}

/// A Mac by its memory, with `recommendedMaxWorkingSetSize` as such machines print it in public logs: by
/// macOS 15 and earlier two thirds of memory, three quarters from 36 GB on; macOS 26 allows more on small
/// machines.
struct Mac {
    gib: u64,
    /// Bytes, oldest system first.
    recommended: &'static [u64],
}

const MACS: [Mac; 7] = [
    Mac { gib: 16, recommended: &[11_453_250_000, 12_713_120_000] },
    Mac { gib: 24, recommended: &[17_179_890_000, 19_069_670_000] },
    Mac { gib: 32, recommended: &[22_906_500_000, 26_800_600_000] },
    Mac { gib: 36, recommended: &[28_991_030_000] },
    Mac { gib: 48, recommended: &[38_654_710_000] },
    Mac { gib: 64, recommended: &[51_539_610_000] },
    Mac { gib: 128, recommended: &[103_079_220_000] },
];

impl Mac {
    fn budgets(&self) -> impl Iterator<Item = Budget> {
        let memory = |&recommended| DeviceMemory { machine: self.gib << 30, recommended };
        self.recommended.iter().map(memory).map(Budget::new)
    }
}

/// The largest context of the full-size model within a budget; the model's own limit if that is smaller.
fn context(model: &Model, budget: &Budget, chunk: usize) -> Option<usize> {
    let memory = budget.of_model(model.weight_bytes()).ok()?;
    let session = model.0.session(1, chunk);
    let largest = largest_context(&model.0.shape, &session, memory.limit - memory.weights);
    Some(largest.min(model.0.context))
}

/// R23.
#[test]
fn a_mac_with_24_gb_is_refused_as_it_comes_and_runs_with_the_setting_that_is_named() {
    let model = Model::full_size();
    let mac = MACS.iter().find(|mac| mac.gib == 24).expect("24 GB");
    for budget in mac.budgets() {
        let refused = budget.of_model(model.weight_bytes()).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("the weights take 19.51 GB"), "{text}");
        assert!(text.contains("`sudo sysctl iogpu.wired_limit_mb=20480`"), "{text}");
        let set = budget.with_setting(refused.setting_mb.expect("a setting helps"));
        let largest = context(&model, &set, 512).expect("it runs with the setting");
        assert!(largest >= 32_768, "{largest}");
    }
}

#[test]
fn a_mac_with_16_gb_is_refused_and_no_setting_is_named() {
    let model = Model::full_size();
    for budget in MACS[0].budgets() {
        let refused = budget.of_model(model.weight_bytes()).unwrap_err();
        assert_eq!(refused.setting_mb, None);
    }
}

#[test]
fn macs_from_32_gb_on_run_at_least_32k_tokens_as_they_come() {
    let model = Model::full_size();
    for mac in &MACS[2..] {
        for budget in mac.budgets() {
            for chunk in [512, 2048] {
                let largest = context(&model, &budget, chunk);
                assert!(largest >= Some(32_768), "{} GB, chunk {chunk}: {largest:?}", mac.gib);
            }
        }
    }
}

/// The lines of the budget table in docs/metal.md.
fn budget_lines(model: &Model) -> Vec<String> {
    let gb = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
    let mut lines = Vec::new();
    for mac in &MACS {
        for budget in mac.budgets() {
            let memory = budget.memory();
            let (fits, setting) = match budget.of_model(model.weight_bytes()) {
                Ok(_) => (context(model, &budget, 512), "none".to_owned()),
                Err(refused) => match refused.setting_mb {
                    None => (None, "none helps".into()),
                    Some(mb) => (context(model, &budget.with_setting(mb), 512), format!("`{mb}`")),
                },
            };
            let fits = match fits {
                None => "does not run".into(),
                Some(all) if all == model.0.context => format!("{all}, all of the model's"),
                Some(largest) => largest.to_string(),
            };
            lines.push(format!(
                "| {} GB | {} | {} | {} | {setting} | {fits} |",
                mac.gib,
                gb(memory.recommended),
                gb(budget.headroom()),
                gb(budget.limit()),
            ));
        }
    }
    lines
}

#[test]
fn the_documented_budgets_are_the_planned_ones() {
    let lines = budget_lines(&Model::full_size());
    println!("{}", lines.join("\n"));
    let document = document("metal.md");
    for line in lines {
        assert!(document.contains(&line), "docs/metal.md lacks: {line}");
    }
}

#[test]
fn the_session_that_a_setting_makes_room_for_is_32k_tokens() {
    let model = Model::full_size();
    let capacity = 32_768;
    let session = SessionShape { capacity, splits: splits(capacity), ..model.0.session(1, 512) };
    let needed = MemoryPlan::new(&model.0.shape, &session).total();
    let advised = lily_metal::budget::ADVISED_SESSION;
    assert!((advised * 8 / 10..=advised).contains(&needed), "{needed}");
}

#[test]
fn the_documented_chips_are_those_of_the_table() {
    let document = document("metal.md");
    let is_chip = |line: &&str| line.starts_with("| Apple M") && line.contains(" | `m");
    let lines = document.lines().filter(is_chip).count();
    assert_eq!(lines, CHIPS.len());
    for chip in CHIPS {
        let list = |value: fn(&Variant) -> f64| {
            let mut values: Vec<_> = chip.variants.iter().map(value).collect();
            values.dedup();
            values.iter().map(f64::to_string).collect::<Vec<_>>().join(", ")
        };
        let line = format!(
            "| {} | `{}` | {} | {} | {} |",
            chip.name,
            chip.short_name(),
            chip.family,
            list(|v| f64::from(v.cores)),
            list(|v| v.bandwidth_gb_s)
        );
        assert!(document.contains(&line), "docs/metal.md lacks: {line}");
    }
}

fn document(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    std::fs::read_to_string(&path).expect("the document")
}

/// The lines of the table of predictions in docs/performance.md.
fn prediction_lines(model: &Model) -> Vec<String> {
    let decode = model.decode(1, 4096, Fusions::default());
    let prefill = model.prefill(2048, PrefillEnd::Sample);
    let mut lines = Vec::new();
    for chip in CHIPS {
        // Only where a Mac with this chip has the memory for the model.
        let variant = chip.largest();
        if variant.bandwidth_gb_s < 120.0 {
            continue;
        }
        let gpu = chip.gpu(variant);
        let products = choose_products(SYSTEM, gpu.family, SelfTest::Passed).products;
        let step = model.predict(&decode, 4096, &gpu, products);
        let chunk = model.predict(&prefill, 2048, &gpu, products);
        lines.push(format!(
            "| {} | {} | {:.0} | {:.1} ms | {:.0} ({:.0} to {:.0}) | {:.0} % | {:.0} |",
            gpu.name,
            gpu.cores,
            gpu.bandwidth_gb_s,
            step.step_us / 1e3,
            step.tok_s,
            step.tok_s_range[0],
            step.tok_s_range[1],
            100.0 * step.floors_us / step.step_us,
            chunk.tok_s,
        ));
    }
    lines
}

#[test]
fn the_documented_predictions_are_the_computed_ones() {
    let lines = prediction_lines(&Model::full_size());
    println!("{}", lines.join("\n"));
    let document = document("performance.md");
    for line in lines {
        assert!(document.contains(&line), "docs/performance.md lacks: {line}");
    }
}

#[test]
fn the_documented_share_of_small_launches_is_the_computed_one() {
    let model = Model::full_size();
    let gpu = Gpu::by_short_name("m5-max").expect("a known chip");
    let products = choose_products(SYSTEM, gpu.family, SelfTest::Passed).products;
    let plan = model.decode(1, 4096, Fusions::default());
    let found = model.predict(&plan, 4096, &gpu, products);
    let sentence = format!(
        "{} of lily's {} launches move less than 2 MB: {:.1} % of the bytes and, by the model below, {:.1} % of the \
         time on an M5 Max.",
        found.small_launches,
        found.launches.len(),
        100.0 * found.small_share_of_bytes,
        100.0 * found.small_share_of_time,
    );
    let document = document("performance.md");
    let words: Vec<_> = document.split_whitespace().collect();
    assert!(words.join(" ").contains(&sentence), "docs/performance.md lacks: {sentence}");
}

#[test]
fn a_decode_step_has_fewer_launches_and_stages_than_the_published_system() {
    let model = Model::full_size();
    let gpu = Gpu::by_short_name("m5-max").expect("a known chip");
    let plan = model.decode(1, 4096, Fusions::default());
    for products in [Products::SimdgroupMatrix, Products::TensorOperations] {
        let found = model.predict(&plan, 4096, &gpu, products);
        assert_eq!(found.kind, "prediction");
        let stages = found.launches.iter().map(|l| l.stage).collect::<BTreeSet<_>>().len();
        // Its published figures: 795 kernels in 555 dependent stages.
        assert!(found.launches.len() < 795 && stages < 555);
        assert_eq!((found.launches.len(), stages, found.small_launches), (303, 303, 102));
        // A matrix product with one token is bound by bytes on every chip.
        let head = found.launches.iter().find(|l| l.label == "head").expect("the head");
        assert_eq!(head.bound, Bound::Bytes);
    }
}

/// An estimate looks at a plan at two positions only. (At the first few tokens a launch may cost less: there is no state to
/// read.)
#[test]
fn estimates_are_made_of_the_costs_that_are_printed_at_any_position() {
    let model = Model::full_size();
    let flops = Pace { flops: 1.0, bytes: f64::INFINITY };
    let bytes = Pace { flops: f64::INFINITY, bytes: 1.0 };
    for plan in [model.prefill(64, PrefillEnd::Sample), model.decode(1, 4096, Fusions::default())] {
        let last = Estimate::new(&plan, flops).last_position();
        assert_eq!(last, model.0.context - plan.step().rows());
        for position in [8, 32_768, 100_001, last] {
            // The plan of a decode step is for some lengths only; its estimate is asked for at the last one.
            if !plan.step().is_prefill() && position != last {
                continue;
            }
            let table = model.printed(&plan, position, Target::APPLE);
            let [flops, bytes] =
                [flops, bytes].map(|pace| Estimate::new(&plan, pace).launch_seconds(position));
            for (row, (flops, bytes)) in table.list.iter().zip(flops.iter().zip(bytes)) {
                // Reads a row for each id that is not like another: printed ids are all different.
                if row.kernel == "embed" {
                    continue;
                }
                let what = format!("{} at {position}", row.kernel);
                assert!((flops - row.flops as f64).abs() < 1.0, "{what}: {flops}, {}", row.flops);
                let moved = (row.bytes_read + row.bytes_written) as f64;
                assert!((bytes - moved).abs() < 1.0, "{what}: {bytes}, {moved}");
            }
        }
    }
}

/// Chunks of prompts, as the engine chooses them and the device sends them.
struct Chunks<'a> {
    model: &'a Model,
    /// By the tokens of a chunk.
    estimates: HashMap<usize, Estimate>,
    /// Of the chip in question.
    pace: Pace,
    /// Its largest chunk in tokens.
    largest: usize,
}

impl<'a> Chunks<'a> {
    fn new(model: &'a Model) -> Self {
        Self { model, estimates: HashMap::new(), pace: Pace::default(), largest: SMALLEST }
    }

    /// Chunks on this chip from now on.
    fn on(&mut self, gpu: &Gpu, policy: &Policy) {
        (self.pace, self.largest) = (Pace::of(gpu, policy.target.products), policy.chunk);
    }

    fn estimate(&mut self, tokens: usize) -> Estimate {
        let estimate = self.estimates.entry(tokens).or_insert_with(|| {
            let session = self.model.0.session(1, tokens);
            let buffers = self.model.0.buffers(&session);
            let shape = &self.model.0.shape;
            let builder = PlanBuilder::new(shape, &session, &buffers, Fusions::default());
            Estimate::new(&whole_plan(&builder, tokens).expect("a valid plan"), self.pace)
        });
        estimate.at(self.pace)
    }

    /// Tokens of the chunk behind `position` tokens.
    fn tokens(&mut self, position: usize) -> usize {
        let largest = self.largest;
        let whole_below = |tokens| Ok::<_, Infallible>(self.estimate(tokens).whole_below());
        chunk_at(largest, position, whole_below).expect("infallible")
    }

    /// Position and tokens of the chunk behind `depth` tokens, or of the context's last one.
    fn at(&mut self, depth: usize) -> (usize, usize) {
        let position = depth.min(self.model.0.context - self.tokens(depth));
        (position, self.tokens(position))
    }

    /// Stages in front of which a chunk is cut.
    fn cuts(&mut self, position: usize, tokens: usize) -> Vec<usize> {
        self.estimate(tokens).cuts(position, DecodeSubmission::Whole)
    }

    /// Estimated seconds of its command buffers.
    fn seconds(&mut self, position: usize, tokens: usize) -> Vec<f64> {
        let cuts = self.cuts(position, tokens);
        self.estimate(tokens).submission_seconds(&cuts, position)
    }
}

/// R21: whatever the context, up to all of the model's.
#[test]
fn no_command_buffer_of_a_prompt_holds_the_gpu_for_longer_as_the_context_grows() {
    let model = Model::full_size();
    let mut chunks = Chunks::new(&model);
    for (gpu, policy) in all_policies() {
        chunks.on(&gpu, &policy);
        let (mut position, mut last) = (0, usize::MAX);
        while position + SMALLEST <= model.0.context {
            let tokens = chunks.tokens(position);
            let what = format!("{}, {} cores: {tokens} at {position}", gpu.name, gpu.cores);
            assert!(tokens <= last && tokens >= SMALLEST, "{what} behind {last}");
            let seconds = chunks.seconds(position, tokens);
            assert!(seconds.iter().all(|&s| s <= SUBMISSION_SECONDS), "{what}: {seconds:?}");
            // One command buffer, unless chunks cannot get smaller.
            assert!(seconds.len() == 1 || tokens == SMALLEST, "{what}: {seconds:?}");
            // No smaller than it takes.
            let twice = chunks.seconds(position, 2 * tokens);
            assert!(tokens == policy.chunk || twice.len() > 1, "{what}: {twice:?}");
            last = tokens;
            // Chunk for chunk where they change, and in strides elsewhere.
            let stride = tokens.max(model.0.context / 64 / tokens * tokens);
            let near = chunks.tokens(position + stride) != tokens;
            position += if near { tokens } else { stride };
        }
    }
}

/// Tokens below which chunks are cut rather than made smaller.
const SMALLEST: usize = 128;

/// Positions of the table of chunks in docs/metal.md; the last is where the last chunk of the context ends.
const DEPTHS: [usize; 4] = [0, 32_768, 131_072, 262_144];

/// The lines of the table of chunks in docs/metal.md: for each depth tokens of a chunk, its command buffers, and the
/// predicted time of the longest.
fn chunk_lines(model: &Model) -> Vec<String> {
    let mut chunks = Chunks::new(model);
    let mut plans = HashMap::new();
    let mut lines = Vec::new();
    for chip in CHIPS {
        let gpu = chip.gpu(chip.largest());
        let products = choose_products(SYSTEM, gpu.family, SelfTest::Passed).products;
        chunks.on(&gpu, &Policy::new(&gpu, products));
        let mut cells = vec![gpu.name.clone(), gpu.cores.to_string()];
        for depth in DEPTHS {
            let (position, tokens) = chunks.at(depth);
            let cuts = chunks.cuts(position, tokens);
            let plan =
                plans.entry(tokens).or_insert_with(|| model.prefill(tokens, PrefillEnd::Sample));
            let found = model.predict(plan, position, &gpu, products).cut(&cuts, None);
            let longest = found.longest_command_buffer_us;
            // The bound is for half of the predicted speed.
            assert!(longest < 0.6e6 * SUBMISSION_SECONDS, "{}, {depth}: {longest}", gpu.name);
            let (count, longest) = (found.command_buffers, longest / 1e3);
            cells.push(format!("{tokens} / {count} / {longest:.0} ms"));
        }
        lines.push(format!("| {} |", cells.join(" | ")));
    }
    lines
}

#[test]
fn the_documented_chunks_are_the_chosen_ones_and_none_is_predicted_to_take_long() {
    let lines = chunk_lines(&Model::full_size());
    println!("{}", lines.join("\n"));
    let document = document("metal.md");
    for line in lines {
        assert!(document.contains(&line), "docs/metal.md lacks: {line}");
    }
}

#[test]
fn a_chunk_is_one_command_buffer_but_deep_in_a_context_on_chips_with_few_cores() {
    let model = Model::full_size();
    let mut chunks = Chunks::new(&model);
    for (gpu, policy) in all_policies() {
        chunks.on(&gpu, &policy);
        let counts = DEPTHS.map(|depth| {
            let (position, tokens) = chunks.at(depth);
            assert_eq!(chunks.estimate(tokens).too_long(position), None);
            chunks.cuts(position, tokens).len() + 1
        });
        let what = format!("{}, {} cores, {} GB/s", gpu.name, gpu.cores, gpu.bandwidth_gb_s);
        println!("{what}: {} tokens, {counts:?}", policy.chunk);
        let cores = match policy.target.products {
            Products::SimdgroupMatrix => gpu.cores,
            Products::TensorOperations => 3 * gpu.cores,
        };
        // M1, and chips that nobody knows, read weights for longer than that.
        let is_one = [gpu.bandwidth_gb_s >= 100.0, cores >= 16, cores >= 38, cores >= 64];
        for (depth, (count, is_one)) in DEPTHS.iter().zip(counts.iter().zip(is_one)) {
            assert!(*count == 1 || !is_one, "{what}: {count} behind {depth} tokens");
        }
        assert!(counts.is_sorted() && counts[3] <= 10, "{what}: {counts:?}");
    }
}
