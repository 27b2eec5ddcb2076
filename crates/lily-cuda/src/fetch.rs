//! Small reads that do not wait: each lands in a slot of page-locked memory, with a mark behind it.

use std::sync::Arc;

use lily_plan::{FETCH_BYTES, Fetch};

use crate::driver::{DeviceMemory, Event, Gpu, PinnedMemory};
use crate::error::CudaError;

/// Reads under way at once: more than any engine runs ahead. A later read takes the slot of one that
/// nobody took.
const SLOTS: usize = 64;

/// The slots.
pub(crate) struct Fetches {
    gpu: Arc<Gpu>,
    memory: PinnedMemory,
    /// Ticket and mark of the read in each slot.
    marks: [Option<(u64, Event)>; SLOTS],
    next: u64,
}

impl Fetches {
    /// Empty slots.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        Ok(Self {
            gpu: gpu.clone(),
            memory: gpu.pinned(SLOTS * FETCH_BYTES)?,
            marks: [const { None }; SLOTS],
            next: 0,
        })
    }

    /// Starts a read.
    pub fn start(
        &mut self,
        from: &DeviceMemory,
        offset: usize,
        mut fetch: Fetch,
    ) -> Result<Fetch, CudaError> {
        let slot = self.next as usize % SLOTS;
        let first = slot * FETCH_BYTES;
        from.read_pinned(offset, &mut self.memory, first..first + fetch.bytes().len())?;
        self.marks[slot] = Some((self.next, self.gpu.mark()?));
        fetch.ticket = self.next;
        self.next += 1;
        Ok(fetch)
    }

    /// Waits for a read; `None` if it was never started, or is taken already.
    pub fn finish(&mut self, mut fetch: Fetch) -> Result<Option<Fetch>, CudaError> {
        let slot = fetch.ticket as usize % SLOTS;
        let taken = self.marks[slot].take_if(|(ticket, _)| *ticket == fetch.ticket);
        let Some((_, mark)) = taken else { return Ok(None) };
        mark.wait()?;
        let bytes = fetch.bytes_mut();
        bytes.copy_from_slice(&self.memory.bytes_of()[slot * FETCH_BYTES..][..bytes.len()]);
        Ok(Some(fetch))
    }
}
