//! How much memory the host has left.

use std::fs;
use std::path::Path;

use crate::groups::{ControlGroup, control_groups};

/// Kept free for the system, the program and its threads.
const HEADROOM_BYTES: u64 = 256 << 20;

/// Bytes that buffers may take: what the system calls available, or what the program's limit of address space or those
/// of its control groups leave, less some headroom. `None` where the system does not say.
///
/// Mapped weights are not counted: they lie in the page cache, which the system can give back.
pub fn host_memory() -> Option<u64> {
    host_memory_below(Path::new("/"))
}

fn host_memory_below(root: &Path) -> Option<u64> {
    let system =
        fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| available(&text));
    let groups = control_groups(root, "memory");
    let left = groups.iter().filter_map(left_by);
    let least = left.chain(system).chain(address_space(root)).min()?;
    Some(least.saturating_sub(HEADROOM_BYTES))
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn available(meminfo: &str) -> Option<u64> {
    kibibytes(meminfo, "MemAvailable:")
}

/// A line with a number of KiB, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Bytes of address space that the program's own limit (`ulimit -v`) leaves; `None` without one.
fn address_space(root: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(root.join("proc/self").join(name)).ok();
    let limits = read("limits")?;
    let line = limits.lines().find_map(|l| l.strip_prefix("Max address space"))?;
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(kibibytes(&read("status")?, "VmSize:")?))
}

/// Bytes that a group's limit leaves beside what cannot be given back; `None` without a limit.
fn left_by(group: &ControlGroup) -> Option<u64> {
    let (folder, limit, taken) = match group {
        // Without a limit a number near 2^63 stands there, which is more than any machine has available.
        ControlGroup::One(folder) => (folder, "memory.limit_in_bytes", "total_rss "),
        ControlGroup::Two(folder) => (folder, "memory.max", "anon "),
    };
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let limit: u64 = read(limit)?.trim().parse().ok()?;
    let stat = read("memory.stat")?;
    let taken: u64 = stat.lines().find_map(|l| l.strip_prefix(taken))?.trim().parse().ok()?;
    Some(limit.saturating_sub(taken))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1 << 30;

    /// A root folder with files in it.
    fn machine(files: &[(&str, String)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("it is made");
            fs::write(path, text).expect("it is written");
        }
        root
    }

    fn left(files: &[(&str, String)]) -> Option<u64> {
        host_memory_below(machine(files).path()).map(|bytes| bytes + HEADROOM_BYTES)
    }

    fn meminfo(gigabytes: u64) -> (&'static str, String) {
        let kib = gigabytes << 20;
        ("proc/meminfo", format!("MemTotal:       99999999 kB\nMemAvailable:   {kib} kB\n"))
    }

    #[test]
    fn without_a_limit_it_is_what_the_system_calls_available() {
        assert_eq!(left(&[meminfo(20)]), Some(20 * GB));
        assert_eq!(left(&[]), None);
        assert_eq!(left(&[("proc/meminfo", "MemTotal: 1 kB\n".into())]), None);
        let little = machine(&[("proc/meminfo", "MemAvailable: 4 kB\n".into())]);
        assert_eq!(host_memory_below(little.path()), Some(0));
    }

    #[test]
    fn the_limit_of_address_space_counts_less_what_is_taken() {
        let with = |limit: &str| {
            let limits = format!(
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max address space         {limit}           unlimited            bytes\n"
            );
            vec![
                meminfo(20),
                ("proc/self/limits", limits),
                ("proc/self/status", format!("Name:\tlily\nVmSize:\t {} kB\n", 1 << 20)),
            ]
        };
        assert_eq!(left(&with("unlimited")), Some(20 * GB));
        assert_eq!(left(&with(&(3 * GB).to_string())), Some(2 * GB));
        assert_eq!(left(&with(&(90 * GB).to_string())), Some(20 * GB));
    }

    #[test]
    fn the_least_that_a_group_or_a_parent_of_it_leaves_counts_in_both_versions() {
        let v2 = |max: &str| {
            vec![
                meminfo(20),
                ("proc/self/cgroup", "0::/user.slice/run.scope\n".into()),
                ("sys/fs/cgroup/user.slice/memory.max", format!("{max}\n")),
                ("sys/fs/cgroup/user.slice/memory.stat", format!("anon {GB}\nfile 1\n")),
                ("sys/fs/cgroup/user.slice/run.scope/memory.max", "max\n".into()),
                ("sys/fs/cgroup/user.slice/run.scope/memory.stat", "anon 0\n".into()),
            ]
        };
        assert_eq!(left(&v2(&(8 * GB).to_string())), Some(7 * GB));
        assert_eq!(left(&v2("max")), Some(20 * GB));
        assert_eq!(left(&v2(&(90 * GB).to_string())), Some(20 * GB));
        // Inside of a container its own group is the mount.
        let inside = [
            meminfo(20),
            ("proc/self/cgroup", "0::/box\n".into()),
            ("sys/fs/cgroup/memory.max", (4 * GB).to_string()),
            ("sys/fs/cgroup/memory.stat", format!("anon {}\n", 5 * GB)),
        ];
        assert_eq!(left(&inside), Some(HEADROOM_BYTES), "nothing");
        let v1 = |limit: u64| {
            let stat = format!("cache 7\nrss 5\ntotal_cache 9\ntotal_rss {GB}\n");
            vec![
                meminfo(20),
                ("proc/self/cgroup", "5:memory:/box\n4:cpu:/box\n".into()),
                ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", format!("{limit}\n")),
                ("sys/fs/cgroup/memory/box/memory.stat", stat),
            ]
        };
        assert_eq!(left(&v1(6 * GB)), Some(5 * GB));
        assert_eq!(left(&v1(9_223_372_036_854_771_712)), Some(20 * GB));
    }
}
