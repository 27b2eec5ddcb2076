//! The calls of the Metal device for the full-size model, from its configuration alone: legal, within every limit, and
//! as few as stated. Nothing is allocated or run.

use std::collections::HashMap;

use lily_kernels::gpu::{MatrixFormat, Source, Target};
use lily_metal::arena::{Arguments, Layout, Place};
use lily_metal::chip::{Footprint, MAX_THREADS};
use lily_metal::encoder::check::{Counts, Facts, PipelineInfo, PlanFacts, check};
use lily_metal::encoder::{
    Command, DecodeSubmission, Encoded, IndirectId, Limits, PipelineId, Prepared, Stream, cuts,
    encode, record,
};
use lily_model::plan::{Choice, LengthBucket, PlanBuilder, PrefillEnd, SessionBuffers};
use lily_plan::{Buffer, BufferKind, Fusions, GROUP, Plan};
use lily_tests::plan_model::PlanModel;

/// Bytes of a buffer on the device.
fn size(model: &PlanModel, buffer: &Buffer) -> (u64, Option<MatrixFormat>) {
    let format = model.formats.get(&buffer.name).copied();
    let Some(format) = format.filter(|_| buffer.kind == BufferKind::Weight) else {
        return (buffer.bytes(), None);
    };
    let k = *buffer.shape.last().expect("a matrix has columns");
    let pairs = if format == MatrixFormat::Bf16 { 0 } else { k / GROUP * 4 };
    let rows = buffer.elements() / k;
    ((rows * (k * format.bits() as usize / 8 + pairs)) as u64, Some(format))
}

/// A plan as a device compiles it.
struct Compiled {
    layout: Layout,
    arguments: Vec<u8>,
    pipelines: Vec<PipelineInfo>,
    launches: Vec<Prepared>,
}

impl Compiled {
    fn new(model: &PlanModel, buffers: &SessionBuffers, plan: &Plan) -> Self {
        let limits = Limits::default();
        let layout = Layout::of_sizes(&buffers.table, &limits, |buffer| size(model, buffer));
        let layout = layout.expect("no matrix is larger than an allocation");
        let mut arguments = vec![0; layout.arguments().bytes as usize];
        let mut arena = Arguments::default();
        let mut functions: HashMap<Source, PipelineId> = HashMap::new();
        let (mut pipelines, mut launches) = (Vec::new(), Vec::new());
        for (index, launch) in plan.launches().iter().enumerate() {
            let formats: Vec<_> = launch.bindings.iter().map(|b| layout.format(b.buffer)).collect();
            let entry = Target::APPLE.entry(launch, index, &formats);
            let (face, entry) = entry.expect("the target runs every launch");
            let source = Source::assemble(launch.kernel, &face, &entry);
            let footprint = Footprint::of(&source).expect("sizes are constants");
            let pipeline = *functions.entry(source).or_insert_with(|| {
                pipelines.push(PipelineInfo {
                    max_threads: footprint.max_threads.unwrap_or(MAX_THREADS),
                    threadgroup_bytes: Some(footprint.threadgroup_bytes.into()),
                    simd_width: 32,
                    indirect: true,
                });
                PipelineId(pipelines.len() - 1)
            });
            let place = arena.place(layout.arguments(), &launch.args, &limits);
            let (place, _) = place.expect("there is room");
            arguments[place.offset as usize..place.end() as usize].copy_from_slice(&launch.args);
            let buffers = launch.bindings.iter().map(|b| layout.of(b.buffer));
            let places: Vec<Place> = std::iter::once(place).chain(buffers).collect();
            launches.push(Prepared { pipeline, places, grid: entry.grid, threads: entry.threads });
        }
        Self { layout, arguments, pipelines, launches }
    }

    /// Checks `submissions` of the plan.
    fn counts(&self, plan: &Plan, decode: DecodeSubmission, submissions: usize) -> Counts {
        let cuts = cuts(plan, decode, Limits::default().pace);
        let bodies = record(plan, 0, &self.launches, &cuts);
        self.checked(plan, Encoded { setup: Vec::new(), bodies }, submissions)
    }

    /// The same with the plan in indirect command buffers.
    fn encoded_once(&self, plan: &Plan, submissions: usize) -> Counts {
        let cuts = cuts(plan, DecodeSubmission::Whole, Limits::default().pace);
        let encoded = encode(plan, 0, &self.launches, &cuts, IndirectId(0));
        self.checked(plan, encoded, submissions)
    }

    fn checked(&self, plan: &Plan, encoded: Encoded, submissions: usize) -> Counts {
        let limits = Limits::default();
        let Encoded { setup: mut commands, bodies } = encoded;
        let mut stream = Stream::default();
        let mut send = |command: &Command| -> Result<(), std::convert::Infallible> {
            commands.push(*command);
            Ok(())
        };
        for _ in 0..submissions {
            stream.submit(&bodies, &mut send).expect("nothing fails");
        }
        stream.close(&mut send).expect("nothing fails");
        let sizes = self.launches.iter().map(|l| (l.grid, l.threads)).collect();
        let facts = Facts {
            limits: &limits,
            layout: &self.layout,
            pipelines: &self.pipelines,
            plans: vec![PlanFacts { plan, sizes }],
            arguments: &self.arguments,
        };
        check(&commands, &facts).unwrap_or_else(|fault| panic!("{fault}"))
    }
}

#[test]
fn a_decode_step_is_one_command_buffer_with_a_barrier_for_each_stage_border() {
    let model = PlanModel::full_size();
    let session = model.session(1, 1);
    let buffers = model.buffers(&session);
    for position in [0, 200_000] {
        let fusions = Fusions::default();
        let plan = PlanBuilder::new(&model.shape, &session, &buffers, fusions)
            .decode(LengthBucket::new(position + 1, fusions), Choice::Device)
            .expect("a valid plan");
        let compiled = Compiled::new(&model, &buffers, &plan);
        let counts = compiled.counts(&plan, DecodeSubmission::Whole, 2);
        let launches = plan.launches().len();
        println!("position {position}: {launches} launches, {} stages, {counts:?}", plan.stages());
        assert_eq!((counts.plans, counts.command_buffers), (2, 2));
        assert_eq!(counts.dispatches, 2 * launches);
        assert_eq!(counts.barriers, 2 * (plan.stages() - 1));
        // The figures of docs/metal.md: calls of a step that set something, fewer than eight a launch.
        assert!(counts.settings < 2 * 8 * launches, "{counts:?}");
        let once = compiled.encoded_once(&plan, 2);
        assert_eq!((once.plans, once.executions, once.dispatches), (2, 2, 2 * launches));
        // A step sets nothing and waits nowhere in its encoder; every launch but the first has its own barrier.
        assert_eq!((once.settings, once.barriers), (0, 0));
        assert_eq!(once.indirect, (launches, launches - 1));
        let early = compiled.counts(&plan, DecodeSubmission::Early { stages: 20 }, 2);
        assert_eq!((early.command_buffers, early.barriers), (4, 2 * (plan.stages() - 2)));
    }
}

#[test]
fn a_prefill_chunk_is_cut_so_that_no_command_buffer_is_long() {
    let model = PlanModel::full_size();
    let mut command_buffers = Vec::new();
    for tokens in [8, 128, 512] {
        let session = model.session(1, tokens);
        let buffers = model.buffers(&session);
        let plan = PlanBuilder::new(&model.shape, &session, &buffers, Fusions::default())
            .prefill(tokens, 0, PrefillEnd::Sample)
            .expect("a valid plan");
        let compiled = Compiled::new(&model, &buffers, &plan);
        let counts = compiled.counts(&plan, DecodeSubmission::Whole, 1);
        println!("{tokens} tokens: {} launches, {counts:?}", plan.launches().len());
        assert_eq!(counts.dispatches, plan.launches().len());
        assert_eq!(counts.barriers + counts.command_buffers, plan.stages());
        command_buffers.push(counts.command_buffers);
    }
    // By an estimate for the slowest chip and the longest context.
    assert!(command_buffers[0] <= 2, "a short chunk is cut into {}", command_buffers[0]);
    assert!(command_buffers.is_sorted() && command_buffers[2] > 2, "{command_buffers:?}");
}

#[test]
fn weights_lie_in_a_few_allocations_below_the_limit() {
    let model = PlanModel::full_size();
    let session = model.session(1, 512);
    let buffers = model.buffers(&session);
    let limits = Limits::default();
    let layout = Layout::of_sizes(&buffers.table, &limits, |buffer| size(&model, buffer));
    let sizes = layout.expect("it fits").sizes().to_vec();
    assert!(sizes.iter().all(|&bytes| bytes <= limits.allocation_bytes), "{sizes:?}");
    let declared = buffers.table.iter().map(|(_, b)| size(&model, b).0).sum::<u64>();
    let all: u64 = sizes.iter().sum();
    assert!(all < declared + declared / 1000, "{all} bytes for {declared}");
    assert!(sizes.len() < 24, "{} allocations", sizes.len());
}
