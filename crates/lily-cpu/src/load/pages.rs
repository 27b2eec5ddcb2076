//! Hints to the system about memory. None changes what the memory holds, and a system without one
//! goes on as before.

#[cfg(target_os = "linux")]
use std::ops::Range;

/// Least bytes for which huge pages are asked for: a few of the usual 2 MiB.
const WORTH_HUGE: usize = 8 << 20;

/// Asks for huge pages: a matrix product walks through more memory than small pages of it have room
/// for in the processor's table.
pub(crate) fn want_huge(memory: &[u8]) {
    #[cfg(target_os = "linux")]
    if memory.len() >= WORTH_HUGE && !cfg!(miri) {
        advise(addresses(memory), libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (memory, WORTH_HUGE);
}

/// Asks for huge pages for parts of mapped files, in the order of their addresses. Neighbours are named
/// together: memory with a hint of its own has no huge page in common with what is beside it.
pub(super) fn want_huge_mapped<'a>(parts: impl Iterator<Item = &'a [u8]>) {
    #[cfg(target_os = "linux")]
    if !cfg!(miri) {
        let mut stretch = 0..0;
        for part in parts {
            let here = part.as_ptr_range();
            let (start, end) = (here.start as usize, here.end as usize);
            if start == stretch.end {
                stretch.end = end;
                continue;
            }
            advise(std::mem::replace(&mut stretch, start..end), libc::MADV_HUGEPAGE);
        }
        advise(stretch, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = parts;
}

/// Brings mapped memory in and enters it into the page table, or at least asks for the former.
/// Whether the system did one of the two.
pub(super) fn populate(memory: &[u8]) -> bool {
    #[cfg(target_os = "linux")]
    if !cfg!(miri) {
        let memory = addresses(memory);
        return advise(memory.clone(), libc::MADV_POPULATE_READ)
            || advise(memory, libc::MADV_WILLNEED);
    }
    let _ = memory;
    false
}

#[cfg(target_os = "linux")]
fn addresses(memory: &[u8]) -> Range<usize> {
    let Range { start, end } = memory.as_ptr_range();
    start as usize..end as usize
}

/// Gives a hint for the whole pages inside of borrowed memory.
#[cfg(target_os = "linux")]
fn advise(memory: Range<usize>, advice: libc::c_int) -> bool {
    // SAFETY: it only asks for a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let (start, end) = (memory.start.next_multiple_of(page), memory.end / page * page);
    if start >= end {
        return false;
    }
    // SAFETY: none of the hints used here changes what memory holds.
    unsafe { libc::madvise(start as *mut libc::c_void, end - start, advice) == 0 }
}
