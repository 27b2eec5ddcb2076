//! Indirect command buffers: what is encoded, and what its execution does.

use super::super::command::{IndirectCall, IndirectId, PipelineId, Work};
use super::{Checker, Touch};
use crate::arena::Place;

/// An indirect command buffer.
pub(super) struct Indirect {
    /// Buffers of a command.
    buffers: u32,
    commands: Vec<Entry>,
}

/// A command as far as it is encoded.
#[derive(Clone, Default)]
struct Entry {
    pipeline: Option<PipelineId>,
    places: Vec<Option<Place>>,
    barrier: bool,
    dispatch: Option<([u32; 3], u32, Work)>,
}

impl Checker<'_> {
    pub(super) fn new_indirect(
        &mut self,
        id: IndirectId,
        commands: u32,
        buffers: u32,
    ) -> Result<(), String> {
        let limits = self.facts.limits;
        if id.0 != self.indirect.len() {
            return Err(format!("{id:?}, need {}", self.indirect.len()));
        }
        if commands == 0 || commands > limits.indirect_commands {
            let most = limits.indirect_commands;
            return Err(format!("{id:?} has {commands} commands, need 1 to {most}"));
        }
        if buffers == 0 || buffers > limits.buffers {
            let most = limits.buffers;
            return Err(format!("commands of {id:?} have {buffers} buffers, need 1 to {most}"));
        }
        let commands = vec![Entry::default(); commands as usize];
        self.indirect.push(Indirect { buffers, commands });
        Ok(())
    }

    pub(super) fn encode(
        &mut self,
        id: IndirectId,
        command: u32,
        call: IndirectCall,
    ) -> Result<(), String> {
        let found = self.indirect.get(id.0);
        let found = found.and_then(|i| Some((i.buffers, i.commands.get(command as usize)?)));
        let (buffers, entry) = found.ok_or(format!("{id:?} has no command {command}"))?;
        if entry.dispatch.is_some() {
            return Err(format!("command {command} of {id:?} is encoded already"));
        }
        let mut entry = entry.clone();
        match call {
            IndirectCall::SetPipeline(pipeline) => {
                match self.facts.pipelines.get(pipeline.0) {
                    Some(info) if info.indirect => {}
                    found => return Err(format!("{pipeline:?} of {id:?} is {found:?}")),
                }
                entry.pipeline = Some(pipeline);
            }
            IndirectCall::SetBuffer { index, place } => {
                if index >= buffers {
                    return Err(format!("argument {index} in {id:?}, need less than {buffers}"));
                }
                self.place(index, place)?;
                entry.places.resize(entry.places.len().max(index as usize + 1), None);
                entry.places[index as usize] = Some(place);
            }
            IndirectCall::SetBarrier => {
                entry.barrier = true;
                self.counts.indirect.1 += 1;
            }
            IndirectCall::Dispatch { grid, threads, work } => {
                let pipeline = entry.pipeline.ok_or("no pipeline is set")?;
                self.sizes(self.facts.pipelines[pipeline.0], grid, threads)?;
                entry.dispatch = Some((grid, threads, work));
                self.counts.indirect.0 += 1;
            }
        }
        self.indirect[id.0].commands[command as usize] = entry;
        Ok(())
    }

    /// All commands, in order; against those before them only their own barriers count.
    pub(super) fn execute(&mut self, id: IndirectId, commands: u32) -> Result<(), String> {
        let entries = self.indirect.get(id.0).map(|indirect| indirect.commands.clone());
        let entries = entries.filter(|entries| entries.len() == commands as usize);
        let entries = entries.ok_or(format!("{id:?} has not {commands} commands"))?;
        let mut inside: Vec<Touch> = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let (grid, threads, work) =
                entry.dispatch.ok_or(format!("command {index} of {id:?} is not encoded"))?;
            let touch = self.touch(grid, threads, work, &entry.places)?;
            self.ordered(&touch)?;
            // The newest first: the one that it waits for is mostly the last.
            let other = inside.iter().rev().find(|other| self.conflict(other, &touch));
            match (other, entry.barrier) {
                (Some(other), false) => {
                    let other = other.work;
                    return Err(format!(
                        "command {index} of {id:?}, {work:?}, conflicts with {other:?} and has no barrier"
                    ));
                }
                (None, true) => {
                    return Err(format!(
                        "command {index} of {id:?}, {work:?}, has a barrier and conflicts with none"
                    ));
                }
                _ => inside.push(touch),
            }
        }
        self.segment.append(&mut inside);
        self.counts.executions += 1;
        // What is set in the encoder is not counted on behind it.
        self.pipeline = None;
        self.bound.fill(None);
        Ok(())
    }
}
