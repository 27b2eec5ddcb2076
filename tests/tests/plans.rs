//! Plans of the full-size model, from its configuration alone.

use std::collections::BTreeSet;

use lily_kernels::gpu::{Products, Target, add_entries};
use lily_kernels::{SessionShape, table};
use lily_model::plan::{Choice, LengthBucket, PlanBuilder, PrefillEnd};
use lily_plan::{Fusions, Live, Plan, PlanTable, Precision, control};
use lily_tests::plan_model::PlanModel;

/// The model with its plans.
struct FullSize(PlanModel);

impl FullSize {
    fn new() -> Self {
        Self(PlanModel::full_size())
    }

    fn decode(&self, position: usize, fusions: Fusions) -> PlanTable {
        cost(&self.decode_plan(1, position, fusions), position, 1, 1)
    }

    fn decode_plan(&self, batch: usize, position: usize, fusions: Fusions) -> Plan {
        self.decode_choice(batch, position, fusions, Choice::Device)
    }

    fn decode_choice(
        &self,
        batch: usize,
        position: usize,
        fusions: Fusions,
        choice: Choice,
    ) -> Plan {
        let session = self.0.session(batch, 1);
        let buffers = self.0.buffers(&session);
        PlanBuilder::new(&self.0.shape, &session, &buffers, fusions)
            .decode(LengthBucket::new(position + 1, fusions), choice)
            .expect("a valid plan")
    }

    fn prefill(&self, position: usize, tokens: usize, end: PrefillEnd) -> PlanTable {
        cost(&self.prefill_plan(tokens, end), position, 1, tokens)
    }

    fn prefill_plan(&self, tokens: usize, end: PrefillEnd) -> Plan {
        self.prefill_plan_in(Precision::BF16, tokens, end)
    }

    fn prefill_plan_in(&self, precision: Precision, tokens: usize, end: PrefillEnd) -> Plan {
        let session = SessionShape { precision, ..self.0.session(1, tokens) };
        let buffers = self.0.buffers(&session);
        PlanBuilder::new(&self.0.shape, &session, &buffers, Fusions::default())
            .prefill(tokens, 0, end)
            .expect("a valid plan")
    }

    /// What a GPU runs for each launch of a plan.
    fn entries(&self, plan: &Plan, target: Target) -> PlanTable {
        let rows = plan.step().rows();
        let (batch, tokens) = if plan.step().is_prefill() { (1, rows) } else { (rows, 1) };
        let mut table = cost(plan, 4096, batch, tokens);
        add_entries(&mut table, plan, &self.0.formats, target)
            .expect("the target runs every launch");
        assert!(table.list.iter().all(|row| row.entry.is_some()), "{target:?}");
        table
    }
}

fn cost(plan: &Plan, position: usize, batch: usize, tokens: usize) -> PlanTable {
    let mut rows = vec![0; batch * control::WORDS];
    for row in rows.chunks_mut(control::WORDS) {
        row[control::POSITION] = position as i32;
        row[control::COUNT] = tokens as i32;
    }
    let prompt: Vec<i32> = (0..tokens as i32).collect();
    PlanTable::new(plan, &Live::new(plan.step(), &rows, &prompt, None))
}

#[test]
fn decode_stays_within_320_launches_and_310_stages_and_moves_the_stated_bytes() {
    let model = FullSize::new();
    let table = model.decode(4096, Fusions::default());
    assert_eq!((table.launches, table.stages), (303, 303));
    assert_eq!((table.bytes_read, table.bytes_written), (1_830_486_016, 74_545_028));
    assert_eq!(table.launches_under_2mb, 102);
    for (position, bytes) in [(0, 1_741_411_204), (200, 1_813_352_324), (32_768, 2_515_680_644)] {
        let table = model.decode(position, Fusions::default());
        assert_eq!(table.bytes_read + table.bytes_written, bytes, "at {position}");
    }
}

#[test]
fn fusions_take_launches_away() {
    let model = FullSize::new();
    let none = Fusions::default();
    let topk = Fusions { topk: true, ..none };
    let prepare = Fusions { prepare: true, ..topk };
    let short = Fusions { short: true, ..prepare };
    for (fusions, position, launches, bytes) in [
        (topk, 4096, 263, 1_905_063_684),
        (prepare, 4096, 253, 1_904_879_044),
        (short, 4096, 253, 1_904_879_044),
        // 32 bytes above the reference program, which also merges the embedding.
        (short, 200, 243, 1_810_888_324),
    ] {
        let table = model.decode(position, fusions);
        assert_eq!((table.launches, table.stages), (launches, launches));
        assert_eq!(table.bytes_read + table.bytes_written, bytes);
    }
}

/// Drawing reads the bests of all groups, as greedy does, and instead of their ids the rule and the
/// logits of at most 128 groups.
#[test]
fn a_sampled_step_has_no_more_launches_than_a_greedy_one() {
    let model = FullSize::new();
    let fusions = Fusions { topk: true, prepare: true, short: true };
    for (fusions, launches) in [(Fusions::default(), 303), (fusions, 253)] {
        let greedy = model.decode(4096, fusions);
        let drawn = cost(&model.decode_choice(1, 4096, fusions, Choice::Draw), 4096, 1, 1);
        assert_eq!((drawn.launches, drawn.stages), (launches, launches));
        assert_eq!(greedy.launches, launches);
        assert_eq!(drawn.bytes_written, greedy.bytes_written);
        assert_eq!(drawn.bytes_read + 4 * 7_760, greedy.bytes_read + 4 * (128 * 32 + 8));
    }
}

#[test]
fn prefill_of_a_chunk_has_the_stated_launches_bytes_and_arithmetic() {
    let model = FullSize::new();
    let table = model.prefill(4096, 2048, PrefillEnd::Sample);
    assert_eq!((table.launches, table.stages), (463, 463));
    assert_eq!((table.bytes_read, table.bytes_written), (38_045_720_832, 17_571_658_404));
    assert_eq!(table.flops_per_token / 1_000_000, 5_859);
    assert_eq!(model.prefill(0, 2048, PrefillEnd::More).launches, 462);
}

#[test]
fn weights_of_the_plan_are_the_checkpoint() {
    let model = FullSize::new();
    let buffers = model.0.buffers(&model.0.session(1, 1));
    let bytes = buffers.table.bytes(lily_plan::BufferKind::Weight);
    assert_eq!(bytes, 19_508_789_376);
}

/// The text is what a person reviews: a change of the plan shows here.
#[test]
fn the_first_two_layer_kinds_print_as_recorded() {
    let model = FullSize::new();
    for (name, table) in [
        ("decode", model.decode(4096, Fusions::default())),
        ("prefill", model.prefill(4096, 2048, PrefillEnd::Sample)),
    ] {
        let text = table.summary() + "\n" + &table.rows();
        let line = |l: &&str| {
            let layer = l.split_whitespace().nth(2).and_then(|k| k.split_once('.'));
            layer.is_none_or(|(_, layer)| layer == "0" || layer == "3")
        };
        let shown: Vec<&str> = text.lines().filter(line).collect();
        insta::assert_snapshot!(name, shown.join("\n"));
    }
}

#[test]
fn every_kernel_of_the_table_is_used_by_a_plan_and_every_launch_names_one() {
    let model = FullSize::new();
    let mut used = BTreeSet::new();
    let tables = [
        model.decode(4096, Fusions::default()),
        model.decode(4096, Fusions { prepare: true, ..Fusions::default() }),
        model.decode(100, Fusions { short: true, ..Fusions::default() }),
        model.prefill(0, 2048, PrefillEnd::Sample),
        model.prefill(0, 16, PrefillEnd::More),
        model.prefill(0, 16, PrefillEnd::Draw),
    ];
    for row in tables.iter().flat_map(|t| &t.list) {
        assert!(table::find(row.kernel).is_some(), "{} is no kernel", row.kernel);
        used.insert(row.kernel);
    }
    let unused: Vec<_> =
        table::KERNELS.iter().map(|k| k.name).filter(|k| !used.contains(k)).collect();
    assert!(unused.is_empty(), "{unused:?}");
}

/// What each GPU runs is what a person reviews, too: a change of a kernel's geometry or of a policy
/// shows here.
#[test]
fn every_launch_has_an_entry_on_metal_and_on_cuda() {
    let model = FullSize::new();
    let decode = model.decode_plan(1, 4096, Fusions::default());
    for (device, target, precision) in [
        ("metal", Target::APPLE, Precision::BF16),
        ("cuda", Target::NVIDIA, Precision::BF16_CHUNKS),
    ] {
        let prefill = model.prefill_plan_in(precision, 2048, PrefillEnd::Sample);
        let table = model.entries(&decode, target);
        assert!(table.launches <= 320 && table.stages <= 310, "{device}");
        for (step, table) in [("decode", table), ("prefill", model.entries(&prefill, target))] {
            let mut shown: Vec<String> = Vec::new();
            for row in &table.list {
                let entry = row.entry.as_ref().map(ToString::to_string).unwrap_or_default();
                let line = format!("{:18} {entry}", row.kernel);
                if !shown.contains(&line) {
                    shown.push(line);
                }
            }
            insta::assert_snapshot!(format!("{step}_{device}"), shown.join("\n"));
        }
    }
}

#[test]
fn every_launch_of_the_other_plans_has_an_entry_on_every_gpu() {
    let model = FullSize::new();
    let none = Fusions::default();
    let all = Fusions { topk: true, prepare: true, short: true };
    let mut plans = Vec::new();
    for (batch, position, fusions) in
        [(3, 4096, none), (64, 100, none), (1, 200, all), (8, 200, all)]
    {
        plans.push(model.decode_plan(batch, position, fusions));
    }
    plans.push(model.decode_choice(1, 4096, none, Choice::Draw));
    plans.push(model.decode_choice(8, 4096, all, Choice::Draw));
    for tokens in [1, 7, 33, 512] {
        plans.push(model.prefill_plan(tokens, PrefillEnd::Logits));
        plans.push(model.prefill_plan(tokens, PrefillEnd::Draw));
    }
    let tensor = Target { products: Products::TensorOperations, ..Target::APPLE };
    for target in [Target::APPLE, tensor, Target::NVIDIA, Target::TEST] {
        for plan in &plans {
            model.entries(plan, target);
        }
    }
}
