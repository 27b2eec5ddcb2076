//! Memory of the buffers.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use half::bf16;
use lily_kernels::cpu::{Operand, SharedSlice};
use lily_plan::{DeviceError, Element};
use memmap2::MmapMut;

use crate::load::want_huge;

/// A cache line: no two buffers share one.
const ALIGN: usize = 64;

/// Least bytes of a buffer with a mapping of its own. An allocator clears what it hands out at this
/// alignment, and so touches all of it.
const WORTH_MAPPING: usize = 1 << 20;

/// One allocated buffer. The pages of a large one come from the system, cleared, when they are first
/// touched, so an unused part of the KV cache costs nothing yet; on a machine of several memory nodes
/// they come from the node of the thread that does.
pub(crate) struct Block {
    data: NonNull<u8>,
    owner: Owner,
    bytes: usize,
    element: Element,
}

/// What gives the memory back.
enum Owner {
    Heap(Layout),
    /// Only held: it unmaps when it is dropped.
    Map(#[allow(dead_code)] MmapMut),
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
        let full = || refuse("the system has no memory left; use a smaller --ctx");
        if size >= WORTH_MAPPING {
            let mut map = MmapMut::map_anon(size).map_err(|_| full())?;
            want_huge(&map);
            let data = NonNull::new(map.as_mut_ptr()).ok_or_else(full)?;
            return Ok(Self { data, owner: Owner::Map(map), bytes: size, element });
        }
        let layout = Layout::from_size_align(size.max(1), ALIGN)
            .map_err(|_| refuse("more than the address space"))?;
        // SAFETY: the layout has a size of at least 1.
        let data = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(full)?;
        Ok(Self { data, owner: Owner::Heap(layout), bytes: size, element })
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
        if let Owner::Heap(layout) = self.owner {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.data.as_ptr(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_any_size_are_aligned_cleared_and_can_be_written() {
        for bytes in [0, 1, 4096, WORTH_MAPPING as u64 - 1, WORTH_MAPPING as u64, 9 << 20] {
            let mut block = Block::new(Element::F32, bytes).unwrap();
            assert_eq!(block.data.as_ptr() as usize % ALIGN, 0);
            assert_eq!(block.bytes().len() as u64, bytes);
            assert!(cfg!(miri) || block.bytes().iter().all(|&b| b == 0));
            if let Some(last) = block.bytes_mut().last_mut() {
                *last = 7;
            }
            assert_eq!(block.bytes().last(), (bytes > 0).then_some(&7));
        }
        let error = Block::new(Element::F32, u64::MAX / 2).map(drop).unwrap_err().to_string();
        assert!(error.contains("9223372036854775807 bytes"), "{error}");
    }

    /// An allocator that clears a gigabyte would take its time, and the memory.
    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "Miri has memory of its own")]
    fn what_is_never_touched_takes_no_memory() {
        let resident = || -> u64 {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            4096 * text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        let before = resident();
        let block = Block::new(Element::Bf16, 4 << 30).unwrap();
        let taken = resident().saturating_sub(before);
        assert!(taken < 1 << 30, "{taken} bytes of {}", block.bytes);
    }
}
