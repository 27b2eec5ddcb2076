//! A plan: launches over shared buffers, with hazards and stages.

use std::collections::HashMap;
use std::sync::Arc;

use crate::buffer::{BufferId, Buffers, Region};
use crate::launch::{Binding, Dependency, Launch};
use crate::live::Step;

/// Why a list of launches is not a plan.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// Threadgroups of one launch are independent, so they must not meet in a buffer.
    #[error(
        "launch {launch} reads and writes {buffer}{region} without owning it; \
         split the launch or declare the binding as owned"
    )]
    Unowned {
        /// Label of the launch.
        launch: String,
        /// Buffer name.
        buffer: String,
        /// The written range.
        region: Region,
    },
    /// A static bound leaves its buffer.
    #[error("launch {launch} declares {buffer}{region} outside of the buffer's shape {shape:?}")]
    OutOfBounds {
        /// Label of the launch.
        launch: String,
        /// Buffer name.
        buffer: String,
        /// The declared range.
        region: Region,
        /// Shape of the buffer.
        shape: Vec<usize>,
    },
}

/// A recorded list of launches, valid for every token of its step kind. Device-independent.
#[derive(Clone, Debug)]
pub struct Plan {
    step: Step,
    buffers: Arc<Buffers>,
    launches: Vec<Launch>,
}

impl Plan {
    /// Analyses hazards and groups the launches into stages.
    pub fn new(
        step: Step,
        buffers: Arc<Buffers>,
        mut launches: Vec<Launch>,
    ) -> Result<Self, PlanError> {
        for launch in &launches {
            check_bounds(launch, &buffers)?;
            check_ownership(launch, &buffers)?;
        }
        analyse(&mut launches);
        Ok(Self { step, buffers, launches })
    }

    /// The step this plan runs.
    pub fn step(&self) -> Step {
        self.step
    }

    /// The shared buffers.
    pub fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }

    /// The launches, in recorded order.
    pub fn launches(&self) -> &[Launch] {
        &self.launches
    }

    /// Number of stages; launches of one stage are independent.
    pub fn stages(&self) -> usize {
        self.launches.iter().map(|l| l.stage + 1).max().unwrap_or(0)
    }

    /// Indices of the launches, grouped by stage.
    pub fn by_stage(&self) -> Vec<Vec<usize>> {
        let mut stages = vec![Vec::new(); self.stages()];
        for (index, launch) in self.launches.iter().enumerate() {
            stages[launch.stage].push(index);
        }
        stages
    }

    /// Indices of the launches, grouped by kernel, in the order of the kernels' first launches.
    pub fn by_kernel(&self) -> Vec<(&'static str, Vec<usize>)> {
        let mut kernels: Vec<(&'static str, Vec<usize>)> = Vec::new();
        for (index, launch) in self.launches.iter().enumerate() {
            match kernels.iter_mut().find(|(kernel, _)| *kernel == launch.kernel) {
                Some((_, own)) => own.push(index),
                None => kernels.push((launch.kernel, vec![index])),
            }
        }
        kernels
    }
}

fn check_bounds(launch: &Launch, buffers: &Buffers) -> Result<(), PlanError> {
    for binding in &launch.bindings {
        let buffer = buffers.get(binding.buffer);
        for access in binding.read.iter().chain(&binding.write) {
            let empty = access.bound.axes().iter().any(|r| r.is_empty());
            if empty || !access.bound.fits(&buffer.shape) {
                return Err(PlanError::OutOfBounds {
                    launch: launch.label(),
                    buffer: buffer.name.clone(),
                    region: access.bound.clone(),
                    shape: buffer.shape.clone(),
                });
            }
        }
    }
    Ok(())
}

fn check_ownership(launch: &Launch, buffers: &Buffers) -> Result<(), PlanError> {
    for (i, writer) in launch.bindings.iter().enumerate() {
        let Some(write) = &writer.write else { continue };
        for (j, other) in launch.bindings.iter().enumerate() {
            let meets = |access: &Option<crate::Access>| {
                access.as_ref().is_some_and(|a| a.bound.overlaps(&write.bound))
            };
            let same_buffer = other.buffer == writer.buffer;
            let clash = if i == j {
                !writer.owned && meets(&other.read)
            } else {
                same_buffer && (meets(&other.read) || meets(&other.write))
            };
            if clash {
                return Err(PlanError::Unowned {
                    launch: launch.label(),
                    buffer: buffers.get(writer.buffer).name.clone(),
                    region: write.bound.clone(),
                });
            }
        }
    }
    Ok(())
}

/// Earlier accesses of one buffer.
#[derive(Default)]
struct History {
    reads: Vec<(usize, Region)>,
    writes: Vec<(usize, Region)>,
}

/// A launch goes one stage after the last launch it conflicts with, by static bounds.
fn analyse(launches: &mut [Launch]) {
    let mut histories: HashMap<BufferId, History> = HashMap::new();
    for index in 0..launches.len() {
        let mut needs: Vec<Dependency> = Vec::new();
        for binding in &launches[index].bindings {
            if let Some(history) = histories.get(&binding.buffer) {
                collect_conflicts(binding, history, &mut needs);
            }
        }
        needs.sort_by_key(|d| d.launch);
        let stage = needs.iter().map(|d| launches[d.launch].stage + 1).max().unwrap_or(0);
        for binding in &launches[index].bindings {
            let history = histories.entry(binding.buffer).or_default();
            if let Some(read) = &binding.read {
                history.reads.push((index, read.bound.clone()));
            }
            if let Some(write) = &binding.write {
                history.writes.push((index, write.bound.clone()));
            }
        }
        launches[index].stage = stage;
        launches[index].needs = needs;
    }
}

fn collect_conflicts(binding: &Binding, history: &History, needs: &mut Vec<Dependency>) {
    let mut note = |launch: usize, set: fn(&mut Dependency)| {
        let at = needs.iter().position(|d| d.launch == launch).unwrap_or_else(|| {
            needs.push(Dependency {
                launch,
                read_after_write: false,
                write_after_write: false,
                write_after_read: false,
            });
            needs.len() - 1
        });
        set(&mut needs[at]);
    };
    let meeting = |region: &Region, past: &[(usize, Region)]| -> Vec<usize> {
        past.iter().filter(|(_, r)| r.overlaps(region)).map(|(l, _)| *l).collect()
    };
    if let Some(read) = &binding.read {
        for launch in meeting(&read.bound, &history.writes) {
            note(launch, |d| d.read_after_write = true);
        }
    }
    if let Some(write) = &binding.write {
        for launch in meeting(&write.bound, &history.writes) {
            note(launch, |d| d.write_after_write = true);
        }
        for launch in meeting(&write.bound, &history.reads) {
            note(launch, |d| d.write_after_read = true);
        }
    }
}
