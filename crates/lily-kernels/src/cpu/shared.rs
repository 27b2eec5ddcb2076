//! Buffers shared by the tiles of a launch.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;

/// A slice that several tiles read and write at different places.
///
/// The contract is the plan's: a launch declares what it reads and writes, the executor orders
/// launches that conflict, and inside one launch an element is written by one tile only and read by
/// no other tile.
pub struct SharedSlice<'a, T> {
    data: *mut T,
    len: usize,
    lifetime: PhantomData<&'a UnsafeCell<[T]>>,
}

impl<T> Clone for SharedSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedSlice<'_, T> {}

// SAFETY: access is only through the unsafe methods below, whose callers rule out data races.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T: Copy> SharedSlice<'a, T> {
    /// Shares a slice for the time of a launch.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { data: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// Shares memory owned elsewhere.
    ///
    /// # Safety
    /// `data` points to `len` elements that stay valid, and are touched only through slices made
    /// here, for `'a`.
    pub unsafe fn from_raw(data: *mut T, len: usize) -> Self {
        Self { data, len, lifetime: PhantomData }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Elements to read.
    ///
    /// # Panics
    /// If the range is not inside the slice.
    ///
    /// # Safety
    /// No tile writes an element of the range while the result lives.
    #[inline]
    pub unsafe fn read(&self, range: Range<usize>) -> &'a [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "read {range:?} of {}",
            self.len
        );
        // SAFETY: the range is inside the slice; the caller rules out writers.
        unsafe { std::slice::from_raw_parts(self.data.add(range.start), range.len()) }
    }

    /// Elements to write.
    ///
    /// # Panics
    /// If the range is not inside the slice.
    ///
    /// # Safety
    /// No other tile, and no other slice of this tile, reads or writes an element of the range while
    /// the result lives.
    #[inline]
    #[allow(clippy::mut_from_ref)] // the point of this type; see its contract
    pub unsafe fn write(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "write {range:?} of {}",
            self.len
        );
        // SAFETY: the range is inside the slice; the caller rules out every other access.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.len()) }
    }
}
