//! In how many command buffers a plan is sent.
//!
//! macOS ends a command buffer that holds the GPU for too long, and with it the request. So none may take longer than
//! [`SUBMISSION_SECONDS`] by an [`Estimate`], and the rule is:
//!
//! > A plan is one command buffer. Where that would take too long, it is cut at stage borders, into command buffers that
//! > are as long as they may be.
//!
//! How long a chunk of a prompt takes depends on the tokens in front of it, because attention looks at all of them. So
//! the device cuts a chunk where it runs, when it is submitted. It hardly ever has to: the engine takes smaller chunks the
//! deeper it is in a context, each small enough to be one command buffer ([`Estimate::whole_below`]), down to a size below
//! which more would be lost than by a cut. Decode steps are cut once, for the longest context.
//!
//! What no cut can shorten is a launch.

use lily_plan::{BufferKind, Launch, Live, Plan, Region, Step, control};

use super::limits::Pace;

/// Longest time of a command buffer on the GPU, in seconds, by the estimate: at half of the predicted speed (see
/// [`Pace::of`]), so that half of it is predicted. Users report kills from four to five seconds on, and the screen is drawn
/// with the same GPU.
pub const SUBMISSION_SECONDS: f64 = 1.0;

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

/// How long a plan takes at a [`Pace`], wherever in a context it runs; with all of its rows live.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    step: Step,
    stages: usize,
    launches: Vec<Cost>,
    /// The last position at which the plan fits into the context.
    last: usize,
    pace: Pace,
}

/// What a launch costs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cost {
    stage: usize,
    /// In the middle of the context.
    middle: Work,
    /// At the last position. Work grows with every token in front of a step by the same amount, but for the first few,
    /// where there is no state to read yet.
    last: Work,
}

/// Arithmetic operations, and bytes read and written.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Work {
    flops: f64,
    bytes: f64,
}

impl Estimate {
    /// Looks at every launch of the plan, in the middle and at the end of the context.
    pub fn new(plan: &Plan, pace: Pace) -> Self {
        let last = last_position(plan);
        let [middle_works, last_works] = [last / 2, last].map(|position| works(plan, position));
        let launches = plan.launches().iter().zip(middle_works.into_iter().zip(last_works));
        let launches = launches.map(|(l, (middle, last))| Cost { stage: l.stage, middle, last });
        let (step, stages) = (plan.step(), plan.stages());
        Self { step, stages, launches: launches.collect(), last, pace }
    }

    /// The same plan at another pace.
    #[must_use]
    pub fn at(&self, pace: Pace) -> Self {
        Self { pace, ..self.clone() }
    }

    /// The last position at which the plan fits into the context: there every launch costs most.
    pub fn last_position(&self) -> usize {
        self.last
    }

    /// Stages in front of which the plan is cut, in rising order: a chunk's where it runs behind `position` tokens, a
    /// decode step's anywhere.
    pub fn cuts(&self, position: usize, decode: DecodeSubmission) -> Vec<usize> {
        let (position, early) = match (self.step, decode) {
            (Step::Prefill { .. }, _) => (position, None),
            (Step::Decode { .. }, DecodeSubmission::Whole) => (self.last, None),
            (Step::Decode { .. }, DecodeSubmission::Early { stages }) => (self.last, Some(stages)),
        };
        let (mut cuts, mut spent) = (Vec::new(), 0.0);
        for (stage, seconds) in self.stage_seconds(position).into_iter().enumerate() {
            let too_long = spent > 0.0 && spent + seconds > SUBMISSION_SECONDS;
            if too_long || (stage > 0 && Some(stage) == early) {
                cuts.push(stage);
                spent = 0.0;
            }
            spent += seconds;
        }
        cuts
    }

    /// The plan is one command buffer behind fewer tokens than this, and is cut from there on; `usize::MAX` if it never
    /// is.
    pub fn whole_below(&self) -> usize {
        let is_whole = |position| self.cuts(position, DecodeSubmission::Whole).is_empty();
        if is_whole(self.last) {
            return usize::MAX;
        }
        let (mut low, mut high) = (0, self.last);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_whole(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The first launch that alone takes longer than a command buffer may, behind `position` tokens.
    pub fn too_long(&self, position: usize) -> Option<usize> {
        self.launch_seconds(position).iter().position(|&seconds| seconds > SUBMISSION_SECONDS)
    }

    /// Seconds of each command buffer of the plan with these cuts, behind `position` tokens.
    pub fn submission_seconds(&self, cuts: &[usize], position: usize) -> Vec<f64> {
        let stages = self.stage_seconds(position);
        let ends = cuts.iter().copied().chain([stages.len()]);
        let starts = std::iter::once(0).chain(cuts.iter().copied());
        starts.zip(ends).map(|(start, end)| stages[start..end].iter().sum()).collect()
    }

    /// Seconds of each launch behind `position` tokens, in the order of the plan.
    pub fn launch_seconds(&self, position: usize) -> Vec<f64> {
        // A straight line through both positions; no line if they are one.
        let middle = self.last / 2;
        let span = (self.last - middle).max(1) as f64;
        let share = (position as f64 - middle as f64) / span;
        let seconds = |cost: &Cost| {
            let at = |middle: f64, last: f64| middle + (last - middle) * share;
            let flops = at(cost.middle.flops, cost.last.flops) / self.pace.flops;
            flops.max(at(cost.middle.bytes, cost.last.bytes) / self.pace.bytes)
        };
        self.launches.iter().map(seconds).collect()
    }

    fn stage_seconds(&self, position: usize) -> Vec<f64> {
        let mut stages = vec![0.0; self.stages];
        for (cost, seconds) in self.launches.iter().zip(self.launch_seconds(position)) {
            stages[cost.stage] += seconds;
        }
        stages
    }
}

fn last_position(plan: &Plan) -> usize {
    let states = plan.buffers().iter().filter(|(_, b)| b.kind == BufferKind::State);
    // The context is an axis of the KV cache, so it is no longer than the longest axis of any state.
    let context = states.flat_map(|(_, b)| b.shape.iter().copied()).max().unwrap_or(0);
    context.saturating_sub(plan.step().rows())
}

/// What each launch does behind `position` tokens, all rows live.
fn works(plan: &Plan, position: usize) -> Vec<Work> {
    let rows = plan.step().rows();
    let sequences = match plan.step() {
        Step::Decode { batch } => batch,
        Step::Prefill { sequence, .. } => sequence + 1,
    };
    let mut block = vec![0; sequences * control::WORDS];
    for row in block.chunks_mut(control::WORDS) {
        row[control::POSITION] = i32::try_from(position).unwrap_or(i32::MAX / 2);
        row[control::COUNT] = rows as i32;
    }
    let prompt = vec![0; rows];
    let live = Live::new(plan.step(), &block, &prompt, None);
    plan.launches().iter().map(|launch| work(plan, launch, &live)).collect()
}

fn work(plan: &Plan, launch: &Launch, live: &Live<'_>) -> Work {
    let mut bytes = 0;
    for binding in &launch.bindings {
        let buffer = plan.buffers().get(binding.buffer);
        for access in binding.read.iter().chain(&binding.write) {
            let elements = |region: &Region| region.elements(&buffer.shape);
            bytes += buffer.bytes_of(access.exact(live).iter().map(elements).sum());
        }
    }
    Work { flops: launch.flops(live) as f64, bytes: bytes as f64 }
}
