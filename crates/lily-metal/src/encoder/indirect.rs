//! A plan encoded once into indirect command buffers, so that a step is one call for each of its bodies.
//!
//! Their form follows from what Apple's documentation says of them:
//!
//! - They have no `setBytes`, and with `inheritBuffers` and `inheritPipelineState` off a command sets its pipeline and
//!   every buffer itself. Argument structs lie in an arena already, and what changes from step to step (token, position)
//!   is in GPU memory, so nothing is ever encoded again.
//! - Their commands do not wait for one another. `setBarrier` has *a* command wait until the commands before it are
//!   complete; nothing is said of the commands behind that one. So every command that conflicts with an earlier one has a
//!   barrier of its own. Launches of one stage then run one after the other: of a decode step's stages hardly any has two.
//! - A concurrent encoder adds no barrier before or behind the range; the [`Stream`](super::Stream) does what it does
//!   behind dispatches.
//! - Buffers that they name must be resident, by the residency set or by `useResource`, as for dispatches.
//! - Threadgroup memory that a kernel declares itself is a part of its pipeline: no length is set.

use lily_plan::Plan;

use super::command::{Command, IndirectCall, IndirectId, Work};
use super::recording::{Body, Prepared};

/// How decode steps are encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecodeEncoding {
    /// Call by call, for each step anew.
    #[default]
    EachStep,
    /// Once, into indirect command buffers. Not the default: nobody has measured it.
    Once,
}

/// A plan in indirect command buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The calls that encode it, once.
    pub setup: Vec<Command>,
    /// The bodies, each of which executes one of the buffers.
    pub bodies: Vec<Body>,
}

/// Encodes a plan, cut in front of the stages of `cuts`: one indirect command buffer for each body, from `first` on.
pub fn encode(
    plan: &Plan,
    index: usize,
    launches: &[Prepared],
    cuts: &[usize],
    first: IndirectId,
) -> Encoded {
    let mut parts: Vec<Vec<(usize, bool)>> = Vec::new();
    for (number, stage) in plan.by_stage().into_iter().enumerate() {
        let is_new = parts.is_empty() || cuts.contains(&number);
        if is_new && !stage.is_empty() {
            parts.push(Vec::new());
        }
        let Some(part) = parts.last_mut() else { continue };
        // A launch behind the first stage of a body conflicts with one of the stage before its own.
        part.extend(stage.into_iter().map(|launch| (launch, !is_new)));
    }
    let mut encoded = Encoded { setup: Vec::new(), bodies: Vec::new() };
    for (part, id) in parts.into_iter().zip(first.0..) {
        let id = IndirectId(id);
        let commands = part.len() as u32;
        let buffers = part.iter().map(|(launch, _)| launches[*launch].places.len()).max();
        let buffers = buffers.unwrap_or_default() as u32;
        encoded.setup.push(Command::NewIndirect { id, commands, buffers });
        let mut body = Body::new(Work::Launch { plan: index, launch: part[0].0 });
        for (&(launch, waits), command) in part.iter().zip(0..) {
            let work = Work::Launch { plan: index, launch };
            let calls = calls(&launches[launch], waits, work);
            encoded.setup.extend(calls.map(|call| Command::Encode { id, command, call }));
            body.launches.push(launch);
        }
        body.commands.push(Command::Execute { id, commands });
        encoded.bodies.push(body);
    }
    encoded
}

/// The calls of one command.
fn calls(launch: &Prepared, waits: bool, work: Work) -> impl Iterator<Item = IndirectCall> {
    let Prepared { pipeline, grid, threads, .. } = *launch;
    let places = launch.places.iter().zip(0..);
    let buffers = places.map(|(&place, index)| IndirectCall::SetBuffer { index, place });
    std::iter::once(IndirectCall::SetPipeline(pipeline))
        .chain(buffers)
        .chain(waits.then_some(IndirectCall::SetBarrier))
        .chain([IndirectCall::Dispatch { grid, threads, work }])
}
