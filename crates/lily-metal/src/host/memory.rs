//! Allocations, shared by processor and GPU.

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLDevice as _, MTLResourceOptions};

use super::Gpu;
use crate::arena::{AllocationId, Place};
use crate::machine::HostError;

/// A Metal buffer.
type Buffer = Retained<ProtocolObject<dyn MTLBuffer>>;

/// The allocations of a session.
#[derive(Default)]
pub(super) struct Memory {
    buffers: Vec<Buffer>,
}

// SAFETY: Metal's buffers may be used from any thread; this owns them, and gives their bytes to one borrower.
unsafe impl Send for Memory {}
// SAFETY: through a shared reference only the buffers' handles are had, never their bytes.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates. Metal's own tracking of hazards is off: the encoder places barriers and fences.
    pub fn new(gpu: &Gpu, sizes: &[u64]) -> Result<Self, HostError> {
        let options =
            MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
        let buffer = |&bytes: &u64| {
            let length = usize::try_from(bytes).ok();
            let buffer = length.and_then(|bytes| gpu.newBufferWithLength_options(bytes, options));
            buffer.ok_or_else(|| HostError::Memory {
                bytes,
                reason: "Metal has no room for it; close other programs or use a smaller context"
                    .into(),
            })
        };
        Ok(Self { buffers: sizes.iter().map(buffer).collect::<Result<_, _>>()? })
    }

    /// All buffers.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// The buffer of an allocation.
    pub fn buffer(&self, AllocationId(index): AllocationId) -> Result<&Buffer, HostError> {
        let found = self.buffers.len();
        self.buffers.get(index).ok_or_else(|| {
            HostError::Unavailable(format!("allocation {index} of {found}; load the model again"))
        })
    }

    /// The bytes of a place; the caller says that nothing under way touches them.
    pub fn bytes(&mut self, place: Place) -> Result<&mut [u8], HostError> {
        let buffer = self.buffer(place.allocation)?;
        if place.end() > buffer.length() as u64 {
            let length = buffer.length();
            return Err(HostError::Unavailable(format!("{place:?} in a buffer of {length} bytes")));
        }
        let start = buffer.contents().cast::<u8>();
        // SAFETY: the buffer is shared memory of at least `place.end()` bytes, which Metal gives out zeroed, and it
        // lives as long as `self`. The borrow is exclusive on this side, and the host's contract keeps the GPU off.
        Ok(unsafe {
            let start = start.add(place.offset as usize);
            std::slice::from_raw_parts_mut(start.as_ptr(), place.bytes as usize)
        })
    }
}
