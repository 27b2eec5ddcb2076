//! How a plan is cut into command buffers.
//!
//! macOS ends a command buffer that holds the GPU for too long, and with it the request. So the time of one
//! command buffer is bounded, whatever the context. Two things do it:
//!
//! - A plan that may take longer is cut at stage borders. The estimate is for the device's [`Pace`] and the longest
//!   context; one plan has the same cuts for every token.
//! - What no cut can shorten is a launch. The only one whose work grows with the context is attention of a chunk, and
//!   the engine takes smaller chunks the deeper it is in a context, so that the launch stays within
//!   [`Pace::launch_flops`].

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
    let seconds = Behind::new(plan, last_position(plan)).stage_seconds(plan, pace, Reach::Allowed);
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

/// Estimated seconds of each command buffer of a plan with these cuts, behind `position` tokens.
pub fn submission_seconds(plan: &Plan, cuts: &[usize], pace: Pace, position: usize) -> Vec<f64> {
    let stages = Behind::new(plan, position).stage_seconds(plan, pace, Reach::All);
    let ends = cuts.iter().copied().chain([stages.len()]);
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    starts.zip(ends).map(|(start, end)| stages[start..end].iter().sum()).collect()
}

/// Estimated seconds of launches behind `position` tokens, in the order of the plan.
pub fn launch_seconds(plan: &Plan, pace: Pace, position: usize) -> Vec<f64> {
    let behind = Behind::new(plan, position);
    plan.launches().iter().map(|l| behind.seconds(plan, l, pace, Reach::All)).collect()
}

/// The last position at which a plan fits into the context, at which every launch costs most.
pub fn last_position(plan: &Plan) -> usize {
    let states = plan.buffers().iter().filter(|(_, b)| b.kind == BufferKind::State);
    // The context is an axis of the KV cache, so it is no longer than the longest axis of any state.
    let context = states.flat_map(|(_, b)| b.shape.iter().copied()).max().unwrap_or(0);
    context.saturating_sub(plan.step().rows())
}

/// How far into a context a plan is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// As far as asked for.
    All,
    /// No farther than the engine runs it: where a launch has as many operations as it may have.
    Allowed,
}

/// A step behind tokens, all rows live.
struct Behind {
    control: Vec<i32>,
    prompt: Vec<i32>,
}

impl Behind {
    fn new(plan: &Plan, position: usize) -> Self {
        let rows = plan.step().rows();
        let sequences = match plan.step() {
            Step::Decode { batch } => batch,
            Step::Prefill { sequence, .. } => sequence + 1,
        };
        let mut control = vec![0; sequences * control::WORDS];
        for row in control.chunks_mut(control::WORDS) {
            row[control::POSITION] = i32::try_from(position).unwrap_or(i32::MAX / 2);
            row[control::COUNT] = rows as i32;
        }
        Self { control, prompt: vec![0; rows] }
    }

    fn seconds(&self, plan: &Plan, launch: &Launch, pace: Pace, reach: Reach) -> f64 {
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
        let flops = match reach {
            Reach::All => launch.flops(&live),
            Reach::Allowed => launch.flops(&live).min(pace.launch_flops()),
        };
        (flops as f64 / pace.flops).max(bytes as f64 / pace.bytes)
    }

    fn stage_seconds(&self, plan: &Plan, pace: Pace, reach: Reach) -> Vec<f64> {
        let mut seconds = vec![0.0; plan.stages()];
        for launch in plan.launches() {
            seconds[launch.stage] += self.seconds(plan, launch, pace, reach);
        }
        seconds
    }
}
