//! The calls of the Metal device for the full-size model, from its configuration alone: legal, within every limit, and
//! as few as stated. Nothing is allocated or run.

use std::collections::HashMap;

use lily_kernels::gpu::{MatrixFormat, Source, Target};
use lily_metal::arena::{Arguments, Layout, Place};
use lily_metal::chip::{Footprint, MAX_THREADS};
use lily_metal::encoder::check::{Counts, Facts, PipelineInfo, PlanFacts, check};
use lily_metal::encoder::{
    Body, Command, DecodeSubmission, Encoded, Estimate, IndirectId, Limits, PipelineId, Prepared,
    Stream, encode, record,
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

    /// Checks two submissions of the plan of a decode step.
    fn decoded_twice(&self, plan: &Plan, decode: DecodeSubmission) -> Counts {
        let cuts = Estimate::new(plan, Limits::default().pace).cuts(0, decode);
        let bodies = record(plan, 0, &self.launches, &cuts);
        self.checked(plan, Vec::new(), &[&bodies, &bodies])
    }

    /// The same with the plan in indirect command buffers.
    fn encoded_once(&self, plan: &Plan) -> Counts {
        let cuts = Estimate::new(plan, Limits::default().pace).cuts(0, DecodeSubmission::Whole);
        let Encoded { setup, bodies } = encode(plan, 0, &self.launches, &cuts, IndirectId(0));
        self.checked(plan, setup, &[&bodies, &bodies])
    }

    /// Checks the plan of a chunk, submitted behind each number of tokens.
    fn behind(&self, plan: &Plan, positions: &[usize]) -> Counts {
        let estimate = Estimate::new(plan, Limits::default().pace);
        let bodies = positions.iter().map(|&position| {
            let cuts = estimate.cuts(position, DecodeSubmission::Whole);
            record(plan, 0, &self.launches, &cuts)
        });
        let bodies: Vec<Vec<Body>> = bodies.collect();
        self.checked(plan, Vec::new(), &bodies.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    /// Checks `setup`, and submissions of the plan as these bodies.
    fn checked(&self, plan: &Plan, setup: Vec<Command>, submissions: &[&[Body]]) -> Counts {
        let limits = Limits::default();
        let mut commands = setup;
        let mut stream = Stream::default();
        let mut send = |command: &Command| -> Result<(), std::convert::Infallible> {
            commands.push(*command);
            Ok(())
        };
        for bodies in submissions {
            stream.submit(bodies, &mut send).expect("nothing fails");
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
        let counts = compiled.decoded_twice(&plan, DecodeSubmission::Whole);
        let launches = plan.launches().len();
        println!("position {position}: {launches} launches, {} stages, {counts:?}", plan.stages());
        assert_eq!((counts.plans, counts.command_buffers), (2, 2));
        assert_eq!(counts.dispatches, 2 * launches);
        assert_eq!(counts.barriers, 2 * (plan.stages() - 1));
        // The figures of docs/metal.md: calls of a step that set something, fewer than eight a launch.
        assert!(counts.settings < 2 * 8 * launches, "{counts:?}");
        let once = compiled.encoded_once(&plan);
        assert_eq!((once.plans, once.executions, once.dispatches), (2, 2, 2 * launches));
        // A step sets nothing and waits nowhere in its encoder; every launch but the first has its own barrier.
        assert_eq!((once.settings, once.barriers), (0, 0));
        assert_eq!(once.indirect, (launches, launches - 1));
        let early = compiled.decoded_twice(&plan, DecodeSubmission::Early { stages: 20 });
        assert_eq!((early.command_buffers, early.barriers), (4, 2 * (plan.stages() - 2)));
    }
}

/// By an estimate for a chip slower than all.
#[test]
fn a_prefill_chunk_is_one_command_buffer_where_it_is_short_and_cut_where_it_is_long() {
    let model = PlanModel::full_size();
    let mut command_buffers = Vec::new();
    for tokens in [8, 64, 512] {
        let session = model.session(1, tokens);
        let buffers = model.buffers(&session);
        let plan = PlanBuilder::new(&model.shape, &session, &buffers, Fusions::default())
            .prefill(tokens, 0, PrefillEnd::Sample)
            .expect("a valid plan");
        let compiled = Compiled::new(&model, &buffers, &plan);
        let (low, high) = (0, model.context - tokens);
        let counts = [&[low][..], &[high], &[low, high, low]].map(|at| compiled.behind(&plan, at));
        for (counts, submissions) in counts.iter().zip([1, 1, 3]) {
            println!("{tokens} tokens: {} launches, {counts:?}", plan.launches().len());
            assert_eq!(counts.plans, submissions);
            assert_eq!(counts.dispatches, submissions * plan.launches().len());
            assert_eq!(counts.barriers + counts.command_buffers, submissions * plan.stages());
        }
        let [low, high, all] = counts.map(|counts| counts.command_buffers);
        assert_eq!(all, low + high + low, "what was sent before changes nothing");
        command_buffers.push((low, high));
    }
    println!("{command_buffers:?}");
    let [short, middle, long] = command_buffers[..] else { unreachable!() };
    assert_eq!((short.0, middle.0), (1, 1));
    assert!(short.1 <= 2 && middle.1 > 2 && long.0 > 1 && long.1 > middle.1);
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
