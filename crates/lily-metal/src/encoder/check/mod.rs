//! Proves of a list of commands what Metal and the plan ask for; for tests and for people.
//!
//! - Frame: command buffers, encoders, fence calls and signals come in a legal order, serials count up.
//! - Bindings: every argument of a dispatch is bound, inside its allocation, aligned, at the place of the
//!   plan's buffer; the argument struct holds the launch's bytes.
//! - Sizes: grid and threads are those of the launch's entry and within the limits of device and pipeline.
//! - Hazards: two dispatches that conflict have a barrier or a fence between them. They are found anew from
//!   the declared regions, pair by pair, not from the plan's stages.
//! - Economy: no barrier without a conflict between the dispatches around it.
//! - Indirect command buffers: each command is encoded once and whole, for pipelines that allow it, before it is executed;
//!   a command that conflicts with an earlier one has a barrier of its own, and no other has.
//! - Completeness: every submission of a plan dispatches each of its launches once.

mod hazards;
mod indirect;

use indirect::Indirect;
use lily_plan::Plan;

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
    /// Whether indirect command buffers may run it.
    pub indirect: bool,
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
    /// Dispatches, those of indirect command buffers too.
    pub dispatches: usize,
    /// Executions of an indirect command buffer.
    pub executions: usize,
    /// Commands of indirect command buffers that were encoded, and barriers in them.
    pub indirect: (usize, usize),
    /// Submissions of plans, launch for launch.
    pub plans: usize,
    /// Copies into a slot.
    pub fetches: usize,
    /// Calls that set pipelines, buffers and offsets in encoders.
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
        indirect: Vec::new(),
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
    /// Indirect command buffers.
    indirect: Vec<Indirect>,
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
            Command::NewIndirect { id, commands, buffers } => {
                self.new_indirect(id, commands, buffers)?;
            }
            Command::Encode { id, command, call } => self.encode(id, command, call)?,
            Command::Execute { id, commands } => {
                expect(State::Encoder, self.state)?;
                if self.updated {
                    return Err("an execution behind the fence's update".into());
                }
                self.execute(id, commands)?;
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
        let Some(slot) = self.bound.get(index as usize) else {
            return Err(format!("argument {index}, need less than {}", limits.buffers));
        };
        if *slot == Some(place) {
            return Err(format!("argument {index} is bound to {place:?} already"));
        }
        self.place(index, place)?;
        self.bound[index as usize] = Some(place);
        self.counts.settings += 1;
        Ok(())
    }

    /// A binding is inside its allocation, and aligned.
    fn place(&self, index: u32, place: Place) -> Result<(), String> {
        let limits = self.facts.limits;
        let size = self.facts.layout.sizes().get(place.allocation.0).copied().unwrap_or(0);
        if place.end() > size || place.bytes == 0 {
            return Err(format!("{place:?} is not inside an allocation of {size} bytes"));
        }
        let alignment = match index {
            0 => limits.constant_alignment,
            _ => limits.device_alignment,
        };
        match place.offset.is_multiple_of(alignment) {
            true => Ok(()),
            false => Err(format!("argument {index} at {}, need {alignment}", place.offset)),
        }
    }

    /// Grid and threads are within the limits of device and pipeline.
    fn sizes(&self, info: PipelineInfo, grid: [u32; 3], threads: u32) -> Result<(), String> {
        let limits = self.facts.limits;
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
        Ok(())
    }

    fn dispatch(&mut self, grid: [u32; 3], threads: u32, work: Work) -> Result<(), String> {
        let info =
            self.pipeline.map(|id| self.facts.pipelines[id.0]).ok_or("no pipeline is set")?;
        self.sizes(info, grid, threads)?;
        let bound = std::mem::take(&mut self.bound);
        let touch = self.touch(grid, threads, work, &bound);
        self.bound = bound;
        let touch = touch?;
        self.ordered(&touch)?;
        self.segment.push(touch);
        Ok(())
    }

    /// Books a dispatch with what is bound for it.
    fn touch(
        &mut self,
        grid: [u32; 3],
        threads: u32,
        work: Work,
        bound: &[Option<Place>],
    ) -> Result<Touch, String> {
        let arguments = match work {
            Work::Launch { plan, launch } => self.launch(plan, launch, grid, threads)?,
            Work::Fetch => {
                self.counts.fetches += 1;
                3
            }
        };
        let places = bound.get(..arguments).unwrap_or(&[]).iter().copied();
        let places = places.collect::<Option<Vec<_>>>().filter(|places| !places.is_empty());
        let touch = Touch { work, places: places.ok_or("an argument is not bound")? };
        self.bindings(&touch)?;
        self.counts.dispatches += 1;
        Ok(touch)
    }

    /// Nothing since the last barrier conflicts; whether that barrier is needed is noted.
    fn ordered(&mut self, touch: &Touch) -> Result<(), String> {
        if let Some(other) = self.segment.iter().find(|other| self.conflict(other, touch)) {
            let (this, other) = (touch.work, other.work);
            return Err(format!("{this:?} conflicts with {other:?}, and no barrier is between"));
        }
        if self.barrier && self.before.iter().any(|other| self.conflict(other, touch)) {
            self.barrier = false;
        }
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

    fn finish_barrier(&mut self) -> Result<(), String> {
        match std::mem::take(&mut self.barrier) {
            true => Err("no dispatch behind the last barrier conflicts with one before it".into()),
            false => Ok(()),
        }
    }
}
