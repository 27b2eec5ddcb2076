//! Small reads that do not wait: each lands in a slot of page-locked memory, with a mark behind it.

use std::sync::Arc;

use lily_plan::{DeviceError, FETCH_BYTES, Fetch};

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
        bytes: usize,
    ) -> Result<Fetch, DeviceError> {
        let mut fetch = Fetch::ready(bytes)?;
        let slot = self.next as usize % SLOTS;
        let first = slot * FETCH_BYTES;
        from.read_pinned(offset, &mut self.memory, first..first + bytes)?;
        self.marks[slot] = Some((self.next, self.gpu.mark()?));
        fetch.ticket = self.next;
        self.next += 1;
        Ok(fetch)
    }

    /// Waits for a read.
    pub fn finish(&mut self, mut fetch: Fetch) -> Result<Fetch, DeviceError> {
        let slot = fetch.ticket as usize % SLOTS;
        let taken = self.marks[slot].take_if(|(ticket, _)| *ticket == fetch.ticket);
        let (_, mark) = taken.ok_or_else(|| {
            DeviceError::Usage("this fetch was never started, or is taken already".into())
        })?;
        mark.wait()?;
        let bytes = fetch.bytes_mut();
        bytes.copy_from_slice(&self.memory.bytes_of()[slot * FETCH_BYTES..][..bytes.len()]);
        Ok(fetch)
    }
}
