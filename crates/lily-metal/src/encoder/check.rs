//! Proves of a list of commands what Metal and the plan ask for; for tests and for people.
//!
//! - Frame: command buffers, encoders, fence calls and signals come in a legal order, serials count up.
//! - Bindings: every argument of a dispatch is bound, inside its allocation, aligned, at the place of the
//!   plan's buffer; the argument struct holds the launch's bytes.
//! - Sizes: grid and threads are those of the launch's entry and within the limits of device and pipeline.
//! - Hazards: two dispatches that conflict have a barrier or a fence between them. They are found anew from
//!   the declared regions, pair by pair, not from the plan's stages.
//! - Economy: no barrier without a conflict between the dispatches around it.
//! - Completeness: every submission of a plan dispatches each of its launches once.

use lily_plan::{Access, Launch, Plan};

use super::command::{Command, PipelineId, Work};
use super::limits::Limits;
use crate::arena::{Layout, Place};

/// What a compiled function needs, as the device says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineInfo {
    /// Most threads of a threadgroup.
    pub max_threads: u32,
    /// Bytes of static threadgroup memory; `None` if the host does not say before it runs.
    pub threadgroup_bytes: Option<u64>,
    /// Threads of a simdgroup.
    pub simd_width: u32,
}

/// A compiled plan as the checker sees it.
pub struct PlanFacts<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Threadgroups and threads of each launch's entry.
    pub sizes: Vec<([u32; 3], u32)>,
}

/// What commands are held against.
pub struct Facts<'a> {
    /// Of the device.
    pub limits: &'a Limits,
    /// Where everything lies.
    pub layout: &'a Layout,
    /// Functions by index.
    pub pipelines: &'a [PipelineInfo],
    /// Plans by index.
    pub plans: Vec<PlanFacts<'a>>,
    /// Contents of the argument arena.
    pub arguments: &'a [u8],
}

/// A command that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("command {at}: {message}")]
pub struct Fault {
    /// Its index.
    pub at: usize,
    /// What is wrong.
    pub message: String,
}

/// What correct commands do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Command buffers.
    pub command_buffers: usize,
    /// Barriers.
    pub barriers: usize,
    /// Dispatches.
    pub dispatches: usize,
    /// Submissions of plans, launch for launch.
    pub plans: usize,
    /// Copies into a slot.
    pub fetches: usize,
    /// Calls that set pipelines, buffers and offsets.
    pub settings: usize,
}

/// Checks commands from the first one of a device on.
///
/// # Errors
/// The first [`Fault`].
pub fn check(commands: &[Command], facts: &Facts<'_>) -> Result<Counts, Fault> {
    let mut checker = Checker {
        facts,
        counts: Counts::default(),
        serial: 0,
        state: State::Outside,
        updated: false,
        waited: false,
        fence: false,
        pipeline: None,
        bound: Vec::new(),
        before: Vec::new(),
        segment: Vec::new(),
        barrier: false,
        running: None,
    };
    for (at, command) in commands.iter().enumerate() {
        checker.step(command).map_err(|message| Fault { at, message })?;
    }
    let end = |message: &str| Fault { at: commands.len(), message: message.into() };
    if checker.state != State::Outside {
        return Err(end("the last command buffer is not committed"));
    }
    if checker.running.is_some() {
        return Err(end("a plan ends before its last launch"));
    }
    Ok(checker.counts)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Outside,
    CommandBuffer,
    Encoder,
    Ended,
    Signalled,
}

struct Checker<'a> {
    facts: &'a Facts<'a>,
    counts: Counts,
    serial: u64,
    state: State,
    /// The fence was updated in this encoder.
    updated: bool,
    /// The fence was waited for in this encoder.
    waited: bool,
    /// The fence was updated in an earlier encoder.
    fence: bool,
    pipeline: Option<PipelineId>,
    bound: Vec<Option<Place>>,
    /// Dispatches between the last two barriers of this encoder.
    before: Vec<Touch>,
    /// Dispatches since the last barrier.
    segment: Vec<Touch>,
    /// A barrier opened the segment, and no conflict across it is found yet.
    barrier: bool,
    /// A plan under way, and which of its launches have run.
    running: Option<(usize, Vec<bool>)>,
}

/// What a dispatch touches.
#[derive(Clone)]
struct Touch {
    work: Work,
    places: Vec<Place>,
}

impl Checker<'_> {
    fn step(&mut self, command: &Command) -> Result<(), String> {
        let expect = |state: State, found: State| match state == found {
            true => Ok(()),
            false => Err(format!("{command:?} in state {found:?}, need {state:?}")),
        };
        match *command {
            Command::BeginCommandBuffer { serial, .. } => {
                expect(State::Outside, self.state)?;
                if serial != self.serial + 1 {
                    return Err(format!("serial {serial} behind {}", self.serial));
                }
                (self.serial, self.state) = (serial, State::CommandBuffer);
                self.counts.command_buffers += 1;
            }
            Command::BeginEncoder => {
                expect(State::CommandBuffer, self.state)?;
                self.state = State::Encoder;
                (self.updated, self.waited, self.barrier) = (false, false, false);
                self.pipeline = None;
                self.bound = vec![None; self.facts.limits.buffers as usize];
                self.before.clear();
                self.segment.clear();
            }
            Command::WaitFence => {
                expect(State::Encoder, self.state)?;
                if self.updated || !self.segment.is_empty() || !self.before.is_empty() {
                    return Err("the fence is waited for behind work or its update".into());
                }
                if !self.fence {
                    return Err("the fence is waited for before its first update".into());
                }
                self.waited = true;
            }
            Command::SetPipeline(id) => {
                expect(State::Encoder, self.state)?;
                if id.0 >= self.facts.pipelines.len() {
                    return Err(format!("there is no pipeline {}", id.0));
                }
                self.counts.settings += 1;
                self.pipeline = Some(id);
            }
            Command::SetBuffer { index, place } => {
                expect(State::Encoder, self.state)?;
                self.bind(index, place)?;
            }
            Command::SetOffset { index, place } => {
                expect(State::Encoder, self.state)?;
                let known = self.bound.get(index as usize).copied().flatten();
                if known.is_none_or(|known| known.allocation != place.allocation) {
                    return Err(format!("argument {index} is bound to another allocation"));
                }
                self.bind(index, place)?;
            }
            Command::Barrier => {
                expect(State::Encoder, self.state)?;
                self.finish_barrier()?;
                if self.segment.is_empty() {
                    return Err("a barrier without a dispatch in front of it".into());
                }
                self.before = std::mem::take(&mut self.segment);
                self.barrier = true;
                self.counts.barriers += 1;
            }
            Command::Dispatch { grid, threads, work } => {
                expect(State::Encoder, self.state)?;
                if self.updated {
                    return Err("a dispatch behind the fence's update".into());
                }
                self.dispatch(grid, threads, work)?;
            }
            Command::UpdateFence => {
                expect(State::Encoder, self.state)?;
                self.finish_barrier()?;
                if self.segment.is_empty() {
                    return Err("an encoder without a dispatch".into());
                }
                if self.fence && !self.waited {
                    return Err("an encoder that does not wait for the one before it".into());
                }
                self.updated = true;
            }
            Command::EndEncoder => {
                expect(State::Encoder, self.state)?;
                if !self.updated {
                    return Err("an encoder ends without updating the fence".into());
                }
                (self.state, self.fence) = (State::Ended, true);
            }
            Command::Signal { serial } => {
                expect(State::Ended, self.state)?;
                if serial != self.serial {
                    return Err(format!("serial {serial} in command buffer {}", self.serial));
                }
                self.state = State::Signalled;
            }
            Command::Commit => {
                expect(State::Signalled, self.state)?;
                self.state = State::Outside;
            }
        }
        Ok(())
    }

    fn bind(&mut self, index: u32, place: Place) -> Result<(), String> {
        let limits = self.facts.limits;
        let Some(slot) = self.bound.get_mut(index as usize) else {
            return Err(format!("argument {index}, need less than {}", limits.buffers));
        };
        if *slot == Some(place) {
            return Err(format!("argument {index} is bound to {place:?} already"));
        }
        let size = self.facts.layout.sizes().get(place.allocation.0).copied().unwrap_or(0);
        if place.end() > size || place.bytes == 0 {
            return Err(format!("{place:?} is not inside an allocation of {size} bytes"));
        }
        let alignment = match index {
            0 => limits.constant_alignment,
            _ => limits.device_alignment,
        };
        if !place.offset.is_multiple_of(alignment) {
            return Err(format!("argument {index} at {}, need {alignment}", place.offset));
        }
        *slot = Some(place);
        self.counts.settings += 1;
        Ok(())
    }

    fn dispatch(&mut self, grid: [u32; 3], threads: u32, work: Work) -> Result<(), String> {
        let limits = self.facts.limits;
        let info =
            self.pipeline.map(|id| self.facts.pipelines[id.0]).ok_or("no pipeline is set")?;
        if threads == 0
            || threads > limits.threads.min(info.max_threads)
            || !threads.is_multiple_of(info.simd_width)
            || info.simd_width != limits.simd_width
        {
            return Err(format!("{threads} threads on {info:?}"));
        }
        if info.threadgroup_bytes.is_some_and(|bytes| bytes > limits.threadgroup_bytes) {
            return Err(format!("{info:?}, need at most {} bytes", limits.threadgroup_bytes));
        }
        if grid.iter().any(|&n| n == 0 || n > limits.grid) {
            return Err(format!("a grid of {grid:?}"));
        }
        let arguments = match work {
            Work::Launch { plan, launch } => self.launch(plan, launch, grid, threads)?,
            Work::Fetch => {
                self.counts.fetches += 1;
                3
            }
        };
        let places = self.bound.iter().take(arguments).copied().collect::<Option<Vec<_>>>();
        let touch = Touch { work, places: places.ok_or("an argument is not bound")? };
        self.bindings(&touch)?;
        if let Some(other) = self.segment.iter().find(|other| self.conflict(other, &touch)) {
            return Err(format!(
                "{work:?} conflicts with {:?}, and no barrier is between",
                other.work
            ));
        }
        if self.barrier && self.before.iter().any(|other| self.conflict(other, &touch)) {
            self.barrier = false;
        }
        self.segment.push(touch);
        self.counts.dispatches += 1;
        Ok(())
    }

    /// Books a launch of a plan; gives its number of arguments.
    fn launch(
        &mut self,
        plan: usize,
        launch: usize,
        grid: [u32; 3],
        threads: u32,
    ) -> Result<usize, String> {
        let Some(facts) = self.facts.plans.get(plan) else {
            return Err(format!("there is no plan {plan}"));
        };
        let launches = facts.plan.launches();
        if launch >= launches.len() || facts.sizes[launch] != (grid, threads) {
            return Err(format!("launch {launch} of plan {plan} over {grid:?} x {threads}"));
        }
        let (running, done) =
            self.running.get_or_insert_with(|| (plan, vec![false; launches.len()]));
        if *running != plan || done[launch] {
            return Err(format!("launch {launch} of plan {plan} in the middle of plan {running}"));
        }
        done[launch] = true;
        if done.iter().all(|&done| done) {
            self.running = None;
            self.counts.plans += 1;
        }
        Ok(launches[launch].bindings.len() + 1)
    }

    /// Every argument lies where the plan's buffer lies.
    fn bindings(&self, touch: &Touch) -> Result<(), String> {
        let layout = self.facts.layout;
        let Work::Launch { .. } = touch.work else {
            let slot = touch.places[2];
            let start = layout.slot(0).offset;
            let inside = slot.allocation == layout.slot(0).allocation
                && slot.offset >= start
                && slot.bytes == touch.places[1].bytes;
            return if inside { Ok(()) } else { Err(format!("{slot:?} is no slot")) };
        };
        let launch = self.plan_launch(touch.work).ok_or("no launch")?;
        let arena = layout.arguments();
        let args = touch.places[0];
        let bytes = self.facts.arguments.get(args.offset as usize..args.end() as usize);
        if args.allocation != arena.allocation || bytes != Some(&launch.args[..]) {
            return Err(format!("{args:?} does not hold the arguments of {}", launch.label()));
        }
        for (binding, place) in launch.bindings.iter().zip(&touch.places[1..]) {
            if *place != layout.of(binding.buffer) {
                return Err(format!("{} of {} is at {place:?}", binding.role, launch.label()));
            }
        }
        Ok(())
    }

    fn plan_launch(&self, work: Work) -> Option<&Launch> {
        match work {
            Work::Launch { plan, launch } => self.facts.plans[plan].plan.launches().get(launch),
            Work::Fetch => None,
        }
    }

    fn finish_barrier(&mut self) -> Result<(), String> {
        match std::mem::take(&mut self.barrier) {
            true => Err("no dispatch behind the last barrier conflicts with one before it".into()),
            false => Ok(()),
        }
    }

    /// Whether one writes what the other touches.
    fn conflict(&self, a: &Touch, b: &Touch) -> bool {
        let (Some(first), Some(second)) = (self.plan_launch(a.work), self.plan_launch(b.work))
        else {
            // A copy: its argument is read by everyone, its source is read, its slot written.
            let copy = |t: &Touch| t.work == Work::Fetch;
            let writes = |t: &Touch, other: &Touch| {
                let written = if copy(t) { &t.places[2..] } else { &t.places[1..] };
                written.iter().any(|w| other.places[1..].iter().any(|p| p.overlaps(*w)))
            };
            return (copy(a) && writes(a, b))
                || (copy(b) && writes(b, a))
                || self.writes_place(a, b)
                || self.writes_place(b, a);
        };
        let touched = |launch: &Launch, write_only: bool| -> Vec<(usize, Access)> {
            let pick = |(i, b): (usize, &lily_plan::Binding)| {
                let read = b.read.iter().filter(|_| !write_only);
                read.chain(&b.write).map(|access| (i, access.clone())).collect::<Vec<_>>()
            };
            launch.bindings.iter().enumerate().flat_map(pick).collect()
        };
        let meets = |writer: (&Launch, &Touch), other: (&Launch, &Touch)| {
            touched(writer.0, true).iter().any(|(i, write)| {
                touched(other.0, false).iter().any(|(j, access)| {
                    writer.1.places[i + 1].overlaps(other.1.places[j + 1])
                        && (writer.0.bindings[*i].buffer != other.0.bindings[*j].buffer
                            || write.bound.overlaps(&access.bound))
                })
            })
        };
        meets((first, a), (second, b)) || meets((second, b), (first, a))
    }

    /// Whether a launch writes what a copy reads.
    fn writes_place(&self, writer: &Touch, copy: &Touch) -> bool {
        let Some(launch) = self.plan_launch(writer.work) else { return false };
        let written = launch.bindings.iter().zip(&writer.places[1..]);
        let mut written = written.filter(|(b, _)| b.write.is_some()).map(|(_, place)| place);
        copy.work == Work::Fetch && written.any(|place| place.overlaps(copy.places[1]))
    }
}
