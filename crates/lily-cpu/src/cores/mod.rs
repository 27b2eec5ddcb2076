//! Which processors this program may use, how many threads run on them, and where.
//!
//! Everything but [`system`] is a function of files below a root, so that tests show it machines that
//! are not at hand.

mod quota;
#[allow(unsafe_code)]
mod system;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

pub(crate) use system::settle;

/// The processors of a machine that this program may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cores {
    /// Physical cores of the fast kind, each with its allowed processors (hardware threads).
    fast: Vec<Vec<usize>>,
    /// Physical cores of the slow kind.
    slow: Vec<Vec<usize>>,
    /// Processors that a container's quota of time is worth, rounded down, at least one.
    quota: Option<usize>,
}

impl Cores {
    /// The cores of this machine, or of this container.
    pub(crate) fn here() -> Self {
        match system::allowed() {
            Some(allowed) => Self::read(Path::new("/"), &allowed),
            None => Self::counted(system::fast_cores()),
        }
    }

    /// Cores of a system that counts them and neither names them nor pins threads to them.
    fn counted(cores: usize) -> Self {
        Self { fast: (0..cores).map(|core| vec![core]).collect(), ..Self::default() }
    }

    /// What the files of Linux below `root` say of the `allowed` processors.
    fn read(root: &Path, allowed: &[usize]) -> Self {
        let cpus = root.join("sys/devices/system/cpu");
        let list = |path: &Path| fs::read_to_string(path).ok().and_then(|text| cpu_list(&text));
        let mut cores: BTreeSet<Vec<usize>> = BTreeSet::new();
        for &cpu in allowed {
            let topology = cpus.join(format!("cpu{cpu}/topology"));
            // The second name is that of kernels before 5.3.
            let names = ["core_cpus_list", "thread_siblings_list"];
            let siblings = names.iter().find_map(|name| list(&topology.join(name)));
            let mut siblings = siblings.unwrap_or_default();
            siblings.retain(|sibling| allowed.contains(sibling));
            cores.insert(if siblings.contains(&cpu) { siblings } else { vec![cpu] });
        }
        let is_fast = fast_processors(root, allowed);
        let (fast, slow) = cores.into_iter().partition(|core| is_fast(core[0]));
        Self { fast, slow, quota: quota::processors(root) }
    }

    /// Threads that a device takes where nobody names a number: one for each physical core of the
    /// fast kind, and no more than a container's quota is worth. A second thread on a core shares its
    /// vector units, and a thread without time of its own stops all others at the next barrier.
    pub(crate) fn threads(&self) -> usize {
        self.fast.len().min(self.quota.unwrap_or(usize::MAX)).max(1)
    }

    /// Threads beyond which some have to share a core or wait for time of their own.
    pub(crate) fn most_threads(&self) -> usize {
        let cores = self.fast.len() + self.slow.len();
        cores.min(self.quota.unwrap_or(usize::MAX)).max(1)
    }

    /// Processors of each worker, the caller's thread not among them; an empty list is all.
    ///
    /// Only a device that takes every fast core puts each worker on a core of its own. One that takes
    /// some of them cannot know which ones another program has taken, so that choice stays with the
    /// system; the slow cores and, as long as there are enough cores, second threads of cores are left
    /// out.
    pub(crate) fn places(&self, threads: usize) -> Vec<Vec<usize>> {
        let workers = threads.saturating_sub(1);
        if threads == self.fast.len() && threads > 1 {
            // The first core stays free for the caller.
            return self.fast[1..].to_vec();
        }
        let place = match threads <= self.fast.len() && !self.slow.is_empty() {
            true => self.fast.concat(),
            false => Vec::new(),
        };
        vec![place; workers]
    }

    /// How the threads were counted, for people.
    pub(crate) fn describe(&self) -> String {
        let processors: usize = self.fast.iter().chain(&self.slow).map(Vec::len).sum();
        let mut text = format!("{} cores", self.fast.len() + self.slow.len());
        if !self.slow.is_empty() {
            text += &format!(", {} of them fast", self.fast.len());
        }
        if processors > self.fast.len() + self.slow.len() {
            text += &format!(", {processors} processors");
        }
        if let Some(quota) = self.quota {
            text += &format!(", a quota of {quota}");
        }
        text
    }
}

/// Which processors are of the fast kind: what Intel's driver lists as such, else those with more than
/// half of the largest capacity that the kernel states, else all.
fn fast_processors(root: &Path, allowed: &[usize]) -> impl Fn(usize) -> bool + use<> {
    let read = |path: String| fs::read_to_string(root.join(path)).ok();
    let mut fast = read("sys/devices/cpu_core/cpus".into()).and_then(|text| cpu_list(&text));
    if fast.is_none() {
        let capacity = |cpu: &usize| -> Option<(usize, u64)> {
            let text = read(format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity"))?;
            Some((*cpu, text.trim().parse().ok()?))
        };
        let capacities: Option<Vec<_>> = allowed.iter().map(capacity).collect();
        fast = capacities.and_then(|all| {
            let largest = all.iter().map(|(_, capacity)| *capacity).max()?;
            let fast = all.into_iter().filter(|(_, capacity)| 2 * capacity > largest);
            Some(fast.map(|(cpu, _)| cpu).collect())
        });
    }
    let fast = fast.filter(|fast| allowed.iter().any(|cpu| fast.contains(cpu)));
    move |cpu| fast.as_ref().is_none_or(|fast| fast.contains(&cpu))
}

/// Most processors that a list may name; Linux has fewer.
const MOST_CPUS: usize = 1 << 16;

/// The numbers of a list like `0-3,8`; `None` if it is empty or malformed.
fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut out = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last >= MOST_CPUS {
            return None;
        }
        out.extend(first..=last);
    }
    (!out.is_empty()).then_some(out)
}
