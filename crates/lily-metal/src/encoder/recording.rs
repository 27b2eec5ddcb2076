//! A plan as command buffer bodies, recorded once and sent for every step.

use lily_plan::Plan;

use super::command::{Command, PipelineId, Work};
use crate::arena::Place;

/// A launch with everything that its dispatch needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The function.
    pub pipeline: PipelineId,
    /// What is bound, by argument: the argument struct, then the launch's buffers.
    pub places: Vec<Place>,
    /// Threadgroups along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a threadgroup.
    pub threads: u32,
}

/// A part of a plan that goes into one command buffer: the calls between the encoder's begin and end, fences
/// left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// What its first dispatch does.
    pub first: Work,
    /// The plan's launches in it, in order.
    pub launches: Vec<usize>,
    /// The calls.
    pub commands: Vec<Command>,
    /// What is set behind them.
    pub end: Bound,
}

impl Body {
    /// A body without calls.
    pub(super) fn new(first: Work) -> Self {
        Self { first, launches: Vec::new(), commands: Vec::new(), end: Bound::default() }
    }
}

/// The bodies of a plan, cut in front of the stages of `cuts`.
pub fn record(plan: &Plan, index: usize, launches: &[Prepared], cuts: &[usize]) -> Vec<Body> {
    let mut bodies: Vec<Body> = Vec::new();
    for (number, stage) in plan.by_stage().into_iter().enumerate() {
        let Some(&launch) = stage.first() else { continue };
        match bodies.last_mut() {
            Some(body) if !cuts.contains(&number) => body.commands.push(Command::Barrier),
            _ => {
                bodies.push(Body::new(Work::Launch { plan: index, launch }));
            }
        }
        let Some(body) = bodies.last_mut() else { continue };
        for launch in stage {
            let work = Work::Launch { plan: index, launch };
            body.launches.push(launch);
            body.end.dispatch(&launches[launch], work, &mut body.commands);
        }
    }
    bodies
}

/// A body of launches that each wait for the one before it.
pub fn record_chain(launches: &[(Prepared, Work)]) -> Body {
    let first = launches.first().map_or(Work::Fetch, |(_, work)| *work);
    let mut body = Body::new(first);
    for (prepared, work) in launches {
        if let Work::Launch { launch, .. } = work {
            body.launches.push(*launch);
        }
        if !body.commands.is_empty() {
            body.commands.push(Command::Barrier);
        }
        body.end.dispatch(prepared, *work, &mut body.commands);
    }
    body
}

/// A body of one launch alone.
pub fn record_one(prepared: &Prepared, work: Work) -> Body {
    record_chain(&[(prepared.clone(), work)])
}

/// What is set in an encoder: nothing at its begin. What is set already is not set again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    pipeline: Option<PipelineId>,
    places: Vec<Place>,
}

impl Bound {
    /// Nothing is set.
    pub fn clear(&mut self) {
        self.pipeline = None;
        self.places.clear();
    }

    /// Takes over what is set elsewhere.
    pub fn copy_from(&mut self, other: &Self) {
        self.pipeline = other.pipeline;
        self.places.clone_from(&other.places);
    }

    /// The calls of a dispatch.
    pub fn dispatch(&mut self, launch: &Prepared, work: Work, out: &mut Vec<Command>) {
        if self.pipeline.replace(launch.pipeline) != Some(launch.pipeline) {
            out.push(Command::SetPipeline(launch.pipeline));
        }
        for (at, &place) in launch.places.iter().enumerate() {
            let index = at as u32;
            match self.places.get(at) {
                Some(known) if *known == place => {}
                Some(known) if known.allocation == place.allocation => {
                    out.push(Command::SetOffset { index, place });
                }
                _ => out.push(Command::SetBuffer { index, place }),
            }
            match self.places.get_mut(at) {
                Some(known) => *known = place,
                None => self.places.push(place),
            }
        }
        let Prepared { grid, threads, .. } = *launch;
        out.push(Command::Dispatch { grid, threads, work });
    }
}
