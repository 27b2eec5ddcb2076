//! Hints to the system about memory. None changes what the memory holds, and a system without one
//! goes on as before.

/// Least bytes for which huge pages are asked for: a few of the usual 2 MiB.
const WORTH_HUGE: usize = 8 << 20;

/// Asks for huge pages: a matrix product walks through more memory than small pages of it have room
/// for in the processor's table.
pub(crate) fn want_huge(memory: &[u8]) {
    #[cfg(target_os = "linux")]
    if memory.len() >= WORTH_HUGE && !cfg!(miri) {
        advise(memory, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (memory, WORTH_HUGE);
}

/// Brings mapped memory in and enters it into the page table, or at least asks for the former.
/// Whether the system did one of the two.
pub(super) fn populate(memory: &[u8]) -> bool {
    #[cfg(target_os = "linux")]
    if !cfg!(miri) {
        return advise(memory, libc::MADV_POPULATE_READ) || advise(memory, libc::MADV_WILLNEED);
    }
    let _ = memory;
    false
}

/// Gives a hint for the whole pages inside of some memory.
#[cfg(target_os = "linux")]
fn advise(memory: &[u8], advice: libc::c_int) -> bool {
    // SAFETY: it only asks for a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let start = (memory.as_ptr() as usize).next_multiple_of(page);
    let end = (memory.as_ptr() as usize + memory.len()) / page * page;
    if start >= end {
        return false;
    }
    // SAFETY: the pages lie inside of borrowed memory, and none of the hints used here changes what
    // they hold.
    unsafe { libc::madvise(start as *mut libc::c_void, end - start, advice) == 0 }
}
