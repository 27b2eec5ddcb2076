//! How much memory the host has left.

use std::path::Path;

/// Kept free for the system, the program and its threads.
const HEADROOM_BYTES: u64 = 256 << 20;

/// Bytes that buffers may take: what the system calls available, or what the container's limit
/// leaves, less some headroom. `None` where the system does not say.
///
/// Mapped weights are not counted: they lie in the page cache, which the system can give back.
pub fn host_memory() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(Path::new(path)).ok();
    let system = read("/proc/meminfo").and_then(|text| available(&text));
    let container = read("/sys/fs/cgroup/memory.max").and_then(|max| {
        let max: u64 = max.trim().parse().ok()?;
        let anonymous = read("/sys/fs/cgroup/memory.stat").and_then(|text| anonymous(&text))?;
        Some(max.saturating_sub(anonymous))
    });
    let least = [system, container].into_iter().flatten().min()?;
    Some(least.saturating_sub(HEADROOM_BYTES))
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Memory of a container that cannot be given back, in bytes.
fn anonymous(stat: &str) -> Option<u64> {
    stat.lines().find_map(|l| l.strip_prefix("anon "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_files_are_read_in_their_units() {
        let meminfo = "MemTotal:       24576000 kB\nMemAvailable:   20480000 kB\n";
        assert_eq!(available(meminfo), Some(20_480_000 * 1024));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
        assert_eq!(anonymous("anon 4096\nfile 1\n"), Some(4096));
        assert_eq!(anonymous("file 1\n"), None);
    }
}
