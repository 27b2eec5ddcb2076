use super::*;

/// A root folder with files in it.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn with(self, path: &str, text: &str) -> Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// Processor `cpu` shares its core with `siblings`.
    fn cpu(self, cpu: usize, siblings: &str) -> Self {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list");
        self.with(&path, siblings)
    }

    fn cores(&self, allowed: &[usize]) -> Cores {
        Cores::read(self.0.path(), allowed)
    }

    fn quota(&self) -> Option<usize> {
        quota::processors(self.0.path())
    }
}

/// Four cores of two processors each, numbered as Linux does: 0 and 4 are one core.
fn two_threads_a_core() -> Machine {
    let siblings = |cpu: usize| format!("{},{}\n", cpu % 4, cpu % 4 + 4);
    (0..8).fold(Machine::new(), |machine, cpu| machine.cpu(cpu, &siblings(cpu)))
}

#[test]
fn a_physical_core_has_one_thread_however_many_processors_it_shows() {
    let machine = two_threads_a_core();
    let all: Vec<usize> = (0..8).collect();
    let cores = machine.cores(&all);
    assert_eq!(cores.fast, [[0, 4], [1, 5], [2, 6], [3, 7]]);
    assert_eq!(cores.threads(), 4);
    assert_eq!(cores.describe(), "4 cores, 8 processors");
    assert_eq!(cores.most_threads(), 4);
    // Every core is taken: each worker has one, and the first is left to the caller.
    assert_eq!(cores.places(4), [vec![1, 5], vec![2, 6], vec![3, 7]]);
    // Some of them: which ones are free is for the system to say.
    assert_eq!(cores.places(3), [vec![], vec![]]);
    assert_eq!(cores.places(8), vec![Vec::<usize>::new(); 7]);
    assert_eq!(cores.places(1), Vec::<Vec<usize>>::new());
    // What the program may not use is not counted, also where it is half of a core.
    assert_eq!(machine.cores(&[1, 2, 5, 7]).fast, [vec![1, 5], vec![2], vec![7]]);
}

#[test]
fn old_kernels_and_machines_that_say_nothing_are_understood() {
    let old = |machine: Machine, cpu: usize| {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        machine.with(&path, "0-1\n")
    };
    let machine = old(old(Machine::new(), 0), 1);
    assert_eq!(machine.cores(&[0, 1]).fast, [[0, 1]]);
    let silent = Machine::new().cores(&[3, 5]);
    assert_eq!((silent.fast.clone(), silent.threads()), (vec![vec![3], vec![5]], 2));
    // A list without the processor itself, or no list at all, makes a core of its own.
    let odd = Machine::new().cpu(0, "7").cpu(1, "x-");
    assert_eq!(odd.cores(&[0, 1]).fast, [[0], [1]]);
    assert_eq!(Cores::default().threads(), 1);
}

#[test]
fn slow_cores_run_no_worker_unless_more_threads_are_asked_for_than_fast_cores() {
    // As an Intel machine of two fast cores of two processors, and two slow ones.
    let intel = (0..4)
        .fold(Machine::new(), |machine, cpu| machine.cpu(cpu, if cpu < 2 { "0-1" } else { "2-3" }));
    let intel = intel.with("sys/devices/cpu_core/cpus", "0-3\n").cpu(4, "4").cpu(5, "5");
    let cores = intel.cores(&[0, 1, 2, 3, 4, 5]);
    assert_eq!((cores.threads(), cores.slow.len()), (2, 2));
    assert_eq!(cores.describe(), "4 cores, 2 of them fast, 6 processors");
    assert_eq!(cores.places(2), [[2, 3]]);
    assert_eq!(cores.places(4), vec![Vec::<usize>::new(); 3]);
    // A program that may use slow cores only takes them.
    assert_eq!(intel.cores(&[4, 5]).threads(), 2);

    // As a phone: one largest core, three nearly as large, four small ones.
    let capacities = [1024, 900, 900, 900, 300, 300, 300, 300];
    let arm = capacities.iter().enumerate().fold(Machine::new(), |machine, (cpu, capacity)| {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity");
        machine.with(&path, &format!("{capacity}\n"))
    });
    let cores = arm.cores(&(0..8).collect::<Vec<_>>());
    assert_eq!((cores.threads(), cores.slow.len()), (4, 4));
    assert_eq!(cores.places(3), [[0, 1, 2, 3], [0, 1, 2, 3]]);
}

#[test]
fn a_containers_quota_bounds_the_threads_in_both_versions_of_control_groups() {
    let v2 = |max: &str| {
        Machine::new()
            .with("proc/self/cgroup", "0::/\n")
            .with("sys/fs/cgroup/cpu.max", &format!("{max}\n"))
    };
    assert_eq!(v2("max 100000").quota(), None);
    assert_eq!(v2("200000 100000").quota(), Some(2));
    assert_eq!(v2("350000 100000").quota(), Some(3), "a part of a processor is no thread");
    assert_eq!(v2("50000 100000").quota(), Some(1));
    assert_eq!(v2("100000 0").quota(), None);
    assert_eq!(v2("many").quota(), None);
    // Parents count, and the least of all is what the program gets.
    let nested = v2("800000 100000")
        .with("proc/self/cgroup", "0::/user.slice/run.scope\n")
        .with("sys/fs/cgroup/user.slice/cpu.max", "300000 100000\n")
        .with("sys/fs/cgroup/user.slice/run.scope/cpu.max", "max 100000\n");
    assert_eq!(nested.quota(), Some(3));

    let v1 = |folder: &str, quota: &str| {
        Machine::new()
            .with("proc/self/cgroup", "5:memory:/box/1\n4:cpu,cpuacct:/box/1\n0::/\n")
            .with(&format!("sys/fs/cgroup/{folder}/cpu.cfs_quota_us"), quota)
            .with(&format!("sys/fs/cgroup/{folder}/cpu.cfs_period_us"), "50000\n")
    };
    assert_eq!(v1("cpu/box/1", "200000\n").quota(), Some(4));
    // Inside of the container its own group is the mount.
    assert_eq!(v1("cpu,cpuacct", "100000\n").quota(), Some(2));
    assert_eq!(v1("cpu", "-1\n").quota(), None);
    assert_eq!(v1("memory", "50000\n").quota(), None);
    assert_eq!(Machine::new().quota(), None);
}

#[test]
fn a_quota_leaves_the_choice_of_cores_to_the_system() {
    let machine = two_threads_a_core()
        .with("proc/self/cgroup", "0::/\n")
        .with("sys/fs/cgroup/cpu.max", "200000 100000\n");
    let cores = machine.cores(&(0..8).collect::<Vec<_>>());
    assert_eq!(cores.threads(), 2);
    assert_eq!(cores.places(2), [Vec::<usize>::new()]);
    assert_eq!(cores.describe(), "4 cores, 8 processors, a quota of 2");
}

#[test]
fn lists_of_processors_are_read_or_refused() {
    assert_eq!(cpu_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
    assert_eq!(cpu_list("5"), Some(vec![5]));
    for bad in ["", "\n", "1-", "a", "0,,1", "0-99999999999"] {
        assert_eq!(cpu_list(bad), None, "{bad:?}");
    }
}

#[test]
fn this_machine_has_a_core_and_a_thread_settles_on_an_allowed_processor() {
    let cores = Cores::here();
    assert!(cores.threads() >= 1);
    if !cfg!(target_os = "linux") || cfg!(miri) {
        return;
    }
    let allowed = system::allowed().unwrap();
    assert!(!allowed.is_empty());
    std::thread::spawn(move || {
        assert!(!settle(&[]));
        assert!(!settle(&[usize::MAX]));
        assert!(settle(&allowed[..1]));
        assert_eq!(system::allowed().unwrap(), &allowed[..1]);
    })
    .join()
    .unwrap();
}
