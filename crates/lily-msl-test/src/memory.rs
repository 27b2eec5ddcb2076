//! Device memory as Rust sees it.

use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::compiler::{CompileError, toolchain};
use crate::ffi::{Binding, Runtime};

/// Memory that ends at an unmapped page. It is read and written by copies or through an exclusive borrow, so that
/// no reference into it lives while a kernel writes it.
pub struct Block {
    data: NonNull<u8>,
    bytes: usize,
    runtime: &'static Runtime,
}

// SAFETY: the block owns its memory. It is not `Sync`: one thread at a time copies or launches.
unsafe impl Send for Block {}

impl Block {
    /// Allocates memory full of bytes 0xff: NaN as floats, -1 as integers. `None` if there is no room.
    pub fn new(bytes: usize) -> Result<Option<Self>, CompileError> {
        let runtime = &toolchain()?.runtime;
        let Some(data) = runtime.allocate(bytes as u64) else { return Ok(None) };
        // SAFETY: `bytes` bytes were allocated at `data`.
        unsafe { data.write_bytes(0xff, bytes) };
        Ok(Some(Self { data, bytes, runtime }))
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies bytes out; `false` if the range is outside.
    #[must_use]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        let inside = offset.checked_add(out.len()).is_some_and(|end| end <= self.bytes);
        if inside {
            let (to, length) = (NonNull::from(&mut *out).cast(), out.len());
            // SAFETY: the range is inside of the allocation, which is initialised, and `out` is other memory.
            unsafe { self.data.add(offset).copy_to_nonoverlapping(to, length) };
        }
        inside
    }

    /// Copies bytes in; `false` if the range is outside.
    #[must_use]
    pub fn write(&mut self, offset: usize, data: &[u8]) -> bool {
        let inside = offset.checked_add(data.len()).is_some_and(|end| end <= self.bytes);
        if inside {
            let from = NonNull::from(data).cast();
            // SAFETY: the range is inside of the allocation, and `data` is other memory.
            unsafe { self.data.add(offset).copy_from_nonoverlapping(from, data.len()) };
        }
        inside
    }

    /// A part of the memory, while nothing is launched over it; `None` if it is outside.
    pub fn bytes_mut(&mut self, offset: usize, bytes: usize) -> Option<&mut [u8]> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return None;
        }
        // SAFETY: the range is inside of the allocation, which is initialised. A launch borrows the block through
        // its bindings, so none runs while this borrow lives.
        Some(unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr().add(offset), bytes) })
    }

    /// The memory as an argument of a launch.
    pub fn binding(&self) -> Binding<'_> {
        Binding { data: self.data, bytes: self.bytes as u64, block: PhantomData }
    }

    /// A part of the memory as an argument of a launch; `None` if it is outside.
    pub fn part(&self, offset: usize, bytes: usize) -> Option<Binding<'_>> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return None;
        }
        // SAFETY: the offset is inside of the allocation, or at its end.
        let data = unsafe { self.data.add(offset) };
        Some(Binding { data, bytes: bytes as u64, block: PhantomData })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, and gone with the block.
        unsafe { self.runtime.free(self.data) }
    }
}
