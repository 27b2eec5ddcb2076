//! Whether the program was started with a standard output at all.
//!
//! A crate of its own because it needs a few lines of unsafe code, and the program has none: Rust's
//! runtime opens `/dev/null` in place of a closed stream before `main` begins, so the question has
//! to be asked by an initialiser that the loader runs earlier.

#![deny(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether standard output was closed when the program started (`>&-` in a shell), so that all that
/// is written to it is lost. Always false on systems without Unix file descriptors.
pub fn stdout_was_closed() -> bool {
    STDOUT_CLOSED.load(Ordering::Relaxed)
}

#[cfg(unix)]
#[allow(unsafe_code, reason = "one call into the C library, and the section of initialisers")]
mod early {
    use super::{Ordering, STDOUT_CLOSED};

    extern "C" fn look() {
        // SAFETY: asks for the flags of a descriptor; any number is allowed, a closed one fails.
        let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
        STDOUT_CLOSED.store(flags == -1, Ordering::Relaxed);
    }

    // SAFETY: the loader calls every pointer of this section once, in front of `main`; `look` has
    // the C calling convention, ignores the arguments that some loaders pass, and uses nothing of
    // the standard library that `main` sets up.
    #[used]
    #[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array"))]
    #[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
    static LOOK: extern "C" fn() = look;
}
