//! What the system is asked: the processors it allows, and threads put on some of them.

/// Processors that this thread may run on, ascending; `None` where the system does not say.
#[cfg(target_os = "linux")]
pub(super) fn allowed() -> Option<Vec<usize>> {
    if cfg!(miri) {
        return None;
    }
    // SAFETY: a set of processors is plain bits, for which all zeros are a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is as large as is said; 0 is this thread.
    let found = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if found != 0 {
        // More processors than the set has bits.
        return None;
    }
    let inside = |cpu: &usize| {
        // SAFETY: the number is below the bits of the set.
        unsafe { libc::CPU_ISSET(*cpu, &set) }
    };
    Some((0..libc::CPU_SETSIZE as usize).filter(inside).collect())
}

/// Puts this thread on the processors of a list; an empty one leaves it where it is. Whether the
/// system did so: it may refuse in a container, and nothing depends on it.
#[cfg(target_os = "linux")]
pub(crate) fn settle(cpus: &[usize]) -> bool {
    let known = cpus.iter().all(|&cpu| cpu < libc::CPU_SETSIZE as usize);
    if cpus.is_empty() || !known || cfg!(miri) {
        return false;
    }
    // SAFETY: as in `allowed`.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        // SAFETY: the number is below the bits of the set, as just looked up.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the set is as large as is said; 0 is this thread.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0 }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn allowed() -> Option<Vec<usize>> {
    None
}

/// macOS has no way to put a thread on a core. A thread of this class runs on fast cores as long as
/// one of them is free.
#[cfg(target_os = "macos")]
pub(crate) fn settle(_cpus: &[usize]) -> bool {
    use libc::qos_class_t::QOS_CLASS_USER_INITIATED;
    // SAFETY: it changes the calling thread alone, and the class is one of the system's.
    unsafe { libc::pthread_set_qos_class_self_np(QOS_CLASS_USER_INITIATED, 0) == 0 }
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn settle(_cpus: &[usize]) -> bool {
    false
}

/// Cores of the fast kind, on a system that does not name them.
pub(super) fn fast_cores() -> usize {
    #[cfg(target_os = "macos")]
    if let Some(cores) = sysctl(c"hw.perflevel0.physicalcpu") {
        return cores;
    }
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A number that macOS knows by this name.
#[cfg(target_os = "macos")]
fn sysctl(name: &std::ffi::CStr) -> Option<usize> {
    let mut value: libc::c_int = 0;
    let mut bytes = size_of::<libc::c_int>();
    // SAFETY: the name ends with a zero, the value has the bytes that are said, and nothing is set.
    let found = unsafe {
        libc::sysctlbyname(
            name.as_ptr(),
            (&raw mut value).cast(),
            &raw mut bytes,
            std::ptr::null_mut(),
            0,
        )
    };
    (found == 0 && bytes == size_of::<libc::c_int>())
        .then(|| usize::try_from(value).ok())
        .flatten()
        .filter(|&cores| cores > 0)
}
