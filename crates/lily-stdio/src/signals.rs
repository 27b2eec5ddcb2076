//! Signals that wait until something is cleaned up.

use std::marker::PhantomData;

/// Holds back the signals by which people and systems end a program; they arrive when it is dropped.
/// It belongs to its thread: it can only be dropped there.
#[must_use = "the signals arrive again when this is dropped"]
pub struct HeldSignals {
    #[cfg(unix)]
    before: libc::sigset_t,
    _this_thread: PhantomData<*const ()>,
}

/// Holds back the signals that end a program (hang-up, Ctrl-C, Ctrl-\\ and a polite kill) for this
/// thread and the threads that it starts meanwhile. Those that start earlier still get them, so this is
/// for a program of one thread. Where there are no such signals, nothing is held.
pub fn hold_signals() -> HeldSignals {
    HeldSignals {
        #[cfg(unix)]
        before: mask::hold(),
        _this_thread: PhantomData,
    }
}

impl HeldSignals {
    /// Lets Ctrl-C and a polite kill through: from now on something else cares for them.
    pub fn admit_stops(&self) {
        #[cfg(unix)]
        mask::admit(&[libc::SIGINT, libc::SIGTERM]);
    }
}

#[cfg(unix)]
impl Drop for HeldSignals {
    fn drop(&mut self) {
        mask::restore(&self.before);
    }
}

#[cfg(unix)]
#[allow(unsafe_code, reason = "calls into the C library")]
mod mask {
    use std::mem::MaybeUninit;
    use std::ptr;

    use libc::{
        SIG_BLOCK, SIG_SETMASK, SIG_UNBLOCK, SIGHUP, SIGINT, SIGQUIT, SIGTERM, c_int, sigset_t,
    };

    /// Adds the signals to those that the thread holds; gives those that it held before.
    pub(super) fn hold() -> sigset_t {
        let set = set_of(&[SIGHUP, SIGINT, SIGQUIT, SIGTERM]);
        let mut before = MaybeUninit::uninit();
        // SAFETY: the set is one; `before` is filled, since this fails only for numbers that are no
        // way to change a mask.
        unsafe {
            libc::pthread_sigmask(SIG_BLOCK, &raw const set, before.as_mut_ptr());
            before.assume_init()
        }
    }

    /// Takes signals from those that the thread holds.
    pub(super) fn admit(signals: &[c_int]) {
        let set = set_of(signals);
        // SAFETY: the set is one.
        unsafe { libc::pthread_sigmask(SIG_UNBLOCK, &raw const set, ptr::null_mut()) };
    }

    /// Makes the thread hold these alone.
    pub(super) fn restore(before: &sigset_t) {
        // SAFETY: the set is one that `hold` got from the system.
        unsafe { libc::pthread_sigmask(SIG_SETMASK, before, ptr::null_mut()) };
    }

    fn set_of(signals: &[c_int]) -> sigset_t {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` fills the set; `sigaddset` takes it, and leaves it as it is for a
        // number that is no signal.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for &signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            set.assume_init()
        }
    }
}

#[cfg(all(test, unix))]
#[allow(unsafe_code, reason = "calls into the C library")]
mod tests {
    use std::mem::MaybeUninit;
    use std::ptr;

    use libc::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, c_int};

    use super::*;

    const ALL: [c_int; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

    fn is_waiting(signal: c_int) -> bool {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigpending` fills the set.
        unsafe {
            libc::sigpending(set.as_mut_ptr());
            libc::sigismember(set.as_ptr(), signal) == 1
        }
    }

    fn are_held() -> [bool; 4] {
        let mut set = MaybeUninit::uninit();
        // SAFETY: without a set to add this only fills the other.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), set.as_mut_ptr());
            ALL.map(|signal| libc::sigismember(set.as_ptr(), signal) == 1)
        }
    }

    #[test]
    fn signals_wait_while_they_are_held() {
        assert_eq!(are_held(), [false; 4]);
        let held = hold_signals();
        assert_eq!(are_held(), [true; 4]);
        for signal in ALL {
            // SAFETY: sends this thread a signal; the test would end here.
            unsafe { libc::raise(signal) };
            assert!(is_waiting(signal));
            // SAFETY: no function is called for it; one that waits is forgotten.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        held.admit_stops();
        assert_eq!(are_held(), [true, false, true, false]);
        drop(held);
        assert_eq!(are_held(), [false; 4]);
    }
}
