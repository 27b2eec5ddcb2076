//! The control groups of this program, whose limits are those of its container.

use std::fs;
use std::path::{Path, PathBuf};

/// A control group of this program, or one that is above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlGroup {
    /// Of version 1, with its folder below the controller's mount.
    One(PathBuf),
    /// Of version 2, with its folder.
    Two(PathBuf),
}

/// Every control group in which this program has limits by `controller`, such as `cpu` or `memory`, up to the mounts of
/// both versions: the least of their limits is what it gets. `root` is `/` but in tests. Without control groups there is
/// none; a folder may be there or not.
pub fn control_groups(root: &Path, controller: &str) -> Vec<ControlGroup> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = root.join("sys/fs/cgroup");
    let mut all = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        if controllers.is_empty() {
            // Version 2, alone or beside version 1.
            for mount in [mounts.clone(), mounts.join("unified")] {
                all.extend(folders(&mount, group).map(ControlGroup::Two));
            }
        } else if controllers.split(',').any(|one| one == controller) {
            for mount in [mounts.join(controller), mounts.join(controllers)] {
                all.extend(folders(&mount, group).map(ControlGroup::One));
            }
        }
    }
    all
}

/// The folders of a group and of its parents, up to the mount. Inside a container the group's own
/// name may not be there; what is mounted is then its own.
fn folders(mount: &Path, group: &str) -> impl Iterator<Item = PathBuf> + use<> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_groups_name_does_not_lead_out_of_its_mount() {
        let parts: Vec<PathBuf> = folders(Path::new("m"), "/../a/./b").collect();
        assert_eq!(parts, ["m", "m/a", "m/a/b"].map(PathBuf::from));
    }

    #[test]
    fn groups_of_both_versions_are_walked_up_to_their_mounts() {
        let root = tempfile::tempdir().expect("a folder");
        let of = |controller: &str| control_groups(root.path(), controller);
        assert_eq!(of("memory"), []);
        let text = "5:memory:/box\n4:cpu,cpuacct:/box\n0::/run.scope\nodd\n";
        fs::create_dir_all(root.path().join("proc/self")).expect("a folder");
        fs::write(root.path().join("proc/self/cgroup"), text).expect("a file");
        let below = |names: &[&str]| -> Vec<PathBuf> {
            names.iter().map(|name| root.path().join("sys/fs/cgroup").join(name)).collect()
        };
        let two = below(&["", "run.scope", "unified", "unified/run.scope"]);
        let with = |one: &[&str]| -> Vec<ControlGroup> {
            let one = below(one).into_iter().map(ControlGroup::One);
            one.chain(two.iter().cloned().map(ControlGroup::Two)).collect()
        };
        assert_eq!(of("memory"), with(&["memory", "memory/box", "memory", "memory/box"]));
        assert_eq!(of("cpu"), with(&["cpu", "cpu/box", "cpu,cpuacct", "cpu,cpuacct/box"]));
        assert_eq!(of("pids"), with(&[]));
    }
}
