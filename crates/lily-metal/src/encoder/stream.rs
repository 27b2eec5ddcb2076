//! The order of command buffers: one encoder each, joined by a fence, numbered, and closed late enough that a
//! small read goes into the command buffer of the step it follows.

use super::command::{Command, Work};
use super::recording::{Body, Bound, Prepared};

/// What is encoded and what is committed.
#[derive(Debug, Default)]
pub struct Stream {
    /// Serial of the last command buffer that was begun.
    serial: u64,
    /// An encoder is open.
    open: bool,
    /// An earlier encoder has updated the fence.
    ordered: bool,
    /// What is set in the open encoder.
    bound: Bound,
    /// Calls of a copy.
    calls: Vec<Command>,
}

impl Stream {
    /// Serial of the last command buffer that was begun; 0 if there was none.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Sends the bodies of a plan. All but the last are committed; the last stays open for a read behind it
    /// until [`close`](Self::close).
    ///
    /// # Errors
    /// What `send` says.
    pub fn submit<E>(
        &mut self,
        bodies: &[Body],
        send: &mut dyn FnMut(&Command) -> Result<(), E>,
    ) -> Result<(), E> {
        for body in bodies {
            self.close(send)?;
            self.begin(body.first, send)?;
            body.commands.iter().try_for_each(&mut *send)?;
            self.bound.copy_from(&body.end);
        }
        Ok(())
    }

    /// Sends a copy behind everything so far, in the open command buffer if there is one, and commits. Gives the
    /// serial to wait for.
    ///
    /// # Errors
    /// What `send` says.
    pub fn fetch<E>(
        &mut self,
        copy: &Prepared,
        send: &mut dyn FnMut(&Command) -> Result<(), E>,
    ) -> Result<u64, E> {
        if self.open {
            send(&Command::Barrier)?;
        } else {
            self.begin(Work::Fetch, send)?;
        }
        self.calls.clear();
        self.bound.dispatch(copy, Work::Fetch, &mut self.calls);
        self.calls.iter().try_for_each(&mut *send)?;
        self.close(send)?;
        Ok(self.serial)
    }

    fn begin<E>(
        &mut self,
        first: Work,
        send: &mut dyn FnMut(&Command) -> Result<(), E>,
    ) -> Result<(), E> {
        self.serial += 1;
        self.bound.clear();
        send(&Command::BeginCommandBuffer { serial: self.serial, first })?;
        send(&Command::BeginEncoder)?;
        self.open = true;
        if self.ordered { send(&Command::WaitFence) } else { Ok(()) }
    }

    /// Ends and commits the open command buffer, if there is one.
    ///
    /// # Errors
    /// What `send` says.
    pub fn close<E>(&mut self, send: &mut dyn FnMut(&Command) -> Result<(), E>) -> Result<(), E> {
        if !std::mem::take(&mut self.open) {
            return Ok(());
        }
        self.ordered = true;
        send(&Command::UpdateFence)?;
        send(&Command::EndEncoder)?;
        send(&Command::Signal { serial: self.serial })?;
        send(&Command::Commit)
    }

    /// Starts over with a new queue and fence; serials go on.
    pub fn rebuilt(&mut self) {
        (self.open, self.ordered) = (false, false);
    }
}
