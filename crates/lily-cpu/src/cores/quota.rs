//! A container's quota of processor time.

use std::fs;
use std::path::{Path, PathBuf};

/// Processors that the quota of this program's control groups is worth, rounded down and at least
/// one; `None` without a quota. A group's parents count too: the least is what it gets.
///
/// Processors that a control group (`cpuset`) takes away are missing from the thread's affinity
/// already.
pub(super) fn processors(root: &Path) -> Option<usize> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = root.join("sys/fs/cgroup");
    let mut least: Option<f64> = None;
    let mut take = |worth: Option<f64>| {
        if let Some(worth) = worth {
            least = Some(least.map_or(worth, |least| least.min(worth)));
        }
    };
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        if controllers.is_empty() {
            // Version 2, alone or beside version 1.
            for mount in [mounts.clone(), mounts.join("unified")] {
                folders(&mount, group).for_each(|folder| take(max(&folder)));
            }
        } else if controllers.split(',').any(|controller| controller == "cpu") {
            for mount in [mounts.join("cpu"), mounts.join(controllers)] {
                folders(&mount, group).for_each(|folder| take(cfs(&folder)));
            }
        }
    }
    // The program rounds down: a thread more than the quota would be stopped in every period.
    least.map(|worth| (worth as usize).max(1))
}

/// The folders of a group and of its parents, up to the mount. Inside a container the group's own
/// name may not be there; what is mounted is then its own.
pub(super) fn folders(mount: &Path, group: &str) -> impl Iterator<Item = PathBuf> + use<> {
    // No part of a name may lead out of the mount.
    let parts: Vec<&str> = group.split('/').filter(|p| !matches!(*p, "" | "." | "..")).collect();
    let mut folder = mount.to_path_buf();
    let mut all = vec![folder.clone()];
    for part in parts {
        folder.push(part);
        all.push(folder.clone());
    }
    all.into_iter()
}

/// `cpu.max` of version 2: microseconds of time, or `max`, in a period of so many.
fn max(folder: &Path) -> Option<f64> {
    let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
    let mut words = text.split_whitespace();
    ratio(words.next()?, words.next()?)
}

/// The two files of version 1; a quota of -1 is none.
fn cfs(folder: &Path) -> Option<f64> {
    let read = |name| fs::read_to_string(folder.join(name)).ok();
    ratio(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?)
}

fn ratio(quota: &str, period: &str) -> Option<f64> {
    let quota: u64 = quota.trim().parse().ok()?;
    let period: u64 = period.trim().parse().ok().filter(|&period| period > 0)?;
    Some(quota as f64 / period as f64)
}
