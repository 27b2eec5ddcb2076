//! How a plan is cut into command buffers.
//!
//! macOS ends a command buffer that holds the GPU for too long, and with it the request. So the time of one
//! command buffer is bounded, whatever the context: a plan that may take longer is cut at stage borders.
//! The estimate is for the device's [`Pace`] and the longest context; one plan has the same cuts for every token.

use lily_plan::{BufferKind, Launch, Live, Plan, Region, Step, control};

use super::limits::Pace;

/// Longest time of a command buffer on the GPU, in seconds, by the estimate. A screen is drawn with the same
/// GPU; users report kills from several seconds on.
pub const SUBMISSION_SECONDS: f64 = 0.5;

/// How decode steps are submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecodeSubmission {
    /// One command buffer.
    #[default]
    Whole,
    /// Two: the first stages are committed early, so that the GPU starts while the host encodes the rest.
    Early {
        /// Stages of the first one.
        stages: usize,
    },
}

/// Stages in front of which a plan is cut, in rising order.
pub fn cuts(plan: &Plan, decode: DecodeSubmission, pace: Pace) -> Vec<usize> {
    let mut cuts = match (plan.step(), decode) {
        (Step::Decode { .. }, DecodeSubmission::Early { stages })
            if (1..plan.stages()).contains(&stages) =>
        {
            vec![stages]
        }
        _ => Vec::new(),
    };
    let worst = Worst::new(plan);
    let seconds: Vec<f64> = worst.stage_seconds(plan, pace);
    let (mut spent, early) = (0.0, cuts.first().copied());
    for (stage, &seconds) in seconds.iter().enumerate() {
        if Some(stage) == early {
            spent = 0.0;
        } else if spent > 0.0 && spent + seconds > SUBMISSION_SECONDS {
            cuts.push(stage);
            spent = 0.0;
        }
        spent += seconds;
    }
    cuts.sort_unstable();
    cuts
}

/// Estimated seconds of each command buffer of a plan with these cuts.
pub fn submission_seconds(plan: &Plan, cuts: &[usize], pace: Pace) -> Vec<f64> {
    let stages = Worst::new(plan).stage_seconds(plan, pace);
    let ends = cuts.iter().copied().chain([stages.len()]);
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    starts.zip(ends).map(|(start, end)| stages[start..end].iter().sum()).collect()
}

/// Estimated seconds of the longest launch of a plan, at the longest context: what no cut can shorten. A
/// caller takes smaller chunks if it is above [`SUBMISSION_SECONDS`].
pub fn longest_launch(plan: &Plan, pace: Pace) -> f64 {
    let worst = Worst::new(plan);
    plan.launches().iter().map(|l| worst.seconds(plan, l, pace)).fold(0.0, f64::max)
}

/// The step at which every launch costs most.
struct Worst {
    control: Vec<i32>,
    prompt: Vec<i32>,
}

impl Worst {
    fn new(plan: &Plan) -> Self {
        let rows = plan.step().rows();
        let states = plan.buffers().iter().filter(|(_, b)| b.kind == BufferKind::State);
        // The context is an axis of the KV cache, so it is no longer than the longest axis of any state.
        let context = states.flat_map(|(_, b)| b.shape.iter().copied()).max().unwrap_or(0);
        let sequences = match plan.step() {
            Step::Decode { batch } => batch,
            Step::Prefill { sequence, .. } => sequence + 1,
        };
        let mut control = vec![0; sequences * control::WORDS];
        for row in control.chunks_mut(control::WORDS) {
            row[control::POSITION] =
                i32::try_from(context.saturating_sub(rows)).unwrap_or(i32::MAX / 2);
            row[control::COUNT] = rows as i32;
        }
        Self { control, prompt: vec![0; rows] }
    }

    fn seconds(&self, plan: &Plan, launch: &Launch, pace: Pace) -> f64 {
        let live = Live::new(plan.step(), &self.control, &self.prompt, None);
        let bytes: u64 = launch
            .bindings
            .iter()
            .flat_map(|b| b.read.iter().chain(&b.write).map(move |access| (b, access)))
            .map(|(b, access)| {
                let buffer = plan.buffers().get(b.buffer);
                let elements = |region: &Region| region.elements(&buffer.shape);
                buffer.bytes_of(access.exact(&live).iter().map(elements).sum())
            })
            .sum();
        (launch.flops(&live) as f64 / pace.flops).max(bytes as f64 / pace.bytes)
    }

    fn stage_seconds(&self, plan: &Plan, pace: Pace) -> Vec<f64> {
        let mut seconds = vec![0.0; plan.stages()];
        for launch in plan.launches() {
            seconds[launch.stage] += self.seconds(plan, launch, pace);
        }
        seconds
    }
}
