//! A container's quota of processor time.

use std::fs;
use std::path::Path;

use lily_plan::{ControlGroup, control_groups};

/// Processors that the quota of this program's control groups is worth, rounded down and at least
/// one; `None` without a quota. A group's parents count too: the least is what it gets.
///
/// Processors that a control group (`cpuset`) takes away are missing from the thread's affinity
/// already.
pub(super) fn processors(root: &Path) -> Option<usize> {
    let groups = control_groups(root, "cpu");
    let worth = groups.iter().filter_map(|group| match group {
        ControlGroup::One(folder) => cfs(folder),
        ControlGroup::Two(folder) => max(folder),
    });
    // The program rounds down: a thread more than the quota would be stopped in every period.
    worth.reduce(f64::min).map(|least| (least as usize).max(1))
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
