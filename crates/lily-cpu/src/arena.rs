//! Memory of the buffers.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use half::bf16;
use lily_kernels::cpu::{Operand, SharedSlice};
use lily_plan::{DeviceError, Element};

/// A cache line: no two buffers share one.
const ALIGN: usize = 64;

/// One allocated buffer. Fresh pages come from the system when they are first touched, so an unused
/// part of the KV cache costs nothing yet.
pub(crate) struct Block {
    data: NonNull<u8>,
    layout: Layout,
    bytes: usize,
    element: Element,
}

// SAFETY: a block owns its memory; sharing happens through `SharedSlice`, under its contract.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    pub(crate) fn new(element: Element, bytes: u64) -> Result<Self, DeviceError> {
        let refuse = |reason: &str| DeviceError::Memory {
            device: "cpu".into(),
            bytes,
            reason: reason.into(),
        };
        let size = usize::try_from(bytes).map_err(|_| refuse("more than the address space"))?;
        let layout = Layout::from_size_align(size.max(1), ALIGN)
            .map_err(|_| refuse("more than the address space"))?;
        // SAFETY: the layout has a size of at least 1.
        let data = unsafe { alloc_zeroed(layout) };
        match NonNull::new(data) {
            Some(data) => Ok(Self { data, layout, bytes: size, element }),
            None => Err(refuse("the system has no memory left; use a smaller --ctx")),
        }
    }

    /// # Safety
    /// The block outlives `'a`, and is touched only through shared slices while a launch runs.
    pub(crate) unsafe fn operand<'a>(&self) -> Operand<'a> {
        let data = self.data.as_ptr();
        // SAFETY: the block holds `bytes` bytes, aligned to a cache line and initialised; the rest is
        // the caller's promise.
        unsafe {
            match self.element {
                Element::Bf16 => {
                    Operand::Bf16(SharedSlice::from_raw(data.cast::<bf16>(), self.bytes / 2))
                }
                Element::I32 => {
                    Operand::I32(SharedSlice::from_raw(data.cast::<i32>(), self.bytes / 4))
                }
                Element::F32 | Element::Matrix { .. } => {
                    Operand::F32(SharedSlice::from_raw(data.cast::<f32>(), self.bytes / 4))
                }
            }
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: initialised memory of this length; `&self` on the device's thread, no launch runs.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`, and `&mut self` excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.bytes) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.data.as_ptr(), self.layout) }
    }
}
