//! The memory limit of the cgroups above a process, in both versions.
//!
//! Invariant: the use that is told belongs to the cgroup whose limit is told.

use std::path::{Path, PathBuf};

use orchestrator_types::ByteCount;

/// Version 1 writes "no limit" as the largest number of whole pages; nothing real comes near.
const NO_LIMIT: u64 = 1 << 60;

/// Where version 1 shows the processors' controller.
const CPU_V1: &str = "/sys/fs/cgroup/cpu";

/// Limit and use, where told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CgroupMemory {
    pub(crate) limit: Option<ByteCount>,
    pub(crate) used: Option<ByteCount>,
    /// Part of the use: pages of files that nobody touched lately, which the kernel takes back first.
    pub(crate) inactive: Option<ByteCount>,
}

/// One version's place and names.
struct Controller {
    mount: &'static str,
    limit: &'static str,
    used: &'static str,
    /// In `memory.stat`, with all cgroups below.
    inactive: &'static str,
    /// Where `oom_kill` counts processes that the kernel killed for want of memory.
    events: &'static str,
}

const V1: Controller = Controller {
    mount: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    inactive: "total_inactive_file",
    events: "memory.oom_control",
};
const V2: Controller = Controller {
    mount: "/sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    inactive: "inactive_file",
    events: "memory.events",
};

/// The tightest limit on the way from the process's cgroup to the root, with the use of the cgroup
/// that sets it; without a limit, the use of the nearest cgroup. `groups` is `/proc/self/cgroup`.
pub(crate) fn cgroup_memory(groups: &str, read: &dyn Fn(&Path) -> Option<String>) -> CgroupMemory {
    let folders: Vec<(PathBuf, &Controller)> = groups.lines().flat_map(folders).collect();
    let number = |folder: &Path, file| read(&folder.join(file))?.trim().parse::<u64>().ok();
    let limits = folders.iter().filter_map(|(folder, controller)| {
        // "max" is no number, and no limit.
        let limit = number(folder, controller.limit).filter(|limit| *limit < NO_LIMIT)?;
        Some((limit, folder, *controller))
    });
    let inactive = |folder: &Path, controller: &Controller| {
        let text = read(&folder.join("memory.stat"))?;
        let (_, value) = text
            .lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(name, _)| *name == controller.inactive)?;
        value.trim().parse().ok().map(ByteCount::bytes)
    };
    if let Some((limit, folder, controller)) = limits.min_by_key(|(limit, ..)| *limit) {
        return CgroupMemory {
            limit: Some(ByteCount::bytes(limit)),
            used: number(folder, controller.used).map(ByteCount::bytes),
            inactive: inactive(folder, controller),
        };
    }
    let used = |(folder, controller): &(PathBuf, &Controller)| {
        let used = number(folder, controller.used)?;
        Some((ByteCount::bytes(used), inactive(folder, controller)))
    };
    let (used, inactive) = folders.iter().find_map(used).unzip();
    CgroupMemory { limit: None, used, inactive: inactive.flatten() }
}

/// How many processes the out-of-memory killer has taken from the process's cgroup (version 2 counts
/// those of cgroups below, too); where no cgroup tells, from the whole machine.
pub(crate) fn oom_kills(groups: &str, read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    let count = |file: PathBuf| {
        let text = read(&file)?;
        let value = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
        value.trim().parse().ok()
    };
    let own = groups.lines().filter_map(|line| folders(line).into_iter().next());
    let mut counts = own.filter_map(|(folder, controller)| count(folder.join(controller.events)));
    counts.next().or_else(|| count(PathBuf::from("/proc/vmstat")))
}

/// How many processors' time the cgroups above a process let it have, in thousandths: the tightest.
/// `None` without a limit.
pub(crate) fn cpu_limit(groups: &str, read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let mount = match controllers {
            "" => V2.mount,
            names if names.split(',').any(|name| name == "cpu") => CPU_V1,
            _ => continue,
        };
        let own = Path::new(mount).join(path.trim_start_matches('/'));
        for folder in own.ancestors().take_while(|folder| folder.starts_with(mount)) {
            let number = |file| read(&folder.join(file))?.trim().parse::<u64>().ok();
            let limit = if controllers.is_empty() {
                let text = read(&folder.join("cpu.max"));
                text.and_then(|text| {
                    let (quota, period) = text.trim().split_once(' ')?;
                    Some((quota.parse::<u64>().ok()?, period.parse().ok()?))
                })
            } else {
                // Without a limit the quota is -1, which is no unsigned number.
                number("cpu.cfs_quota_us").zip(number("cpu.cfs_period_us"))
            };
            limits.extend(limit.and_then(|(quota, period)| (quota * 1_000).checked_div(period)));
        }
    }
    limits.into_iter().min()
}

/// The process's cgroup of one line and all above it, nearest first.
fn folders(line: &str) -> Vec<(PathBuf, &'static Controller)> {
    let mut fields = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
    else {
        return Vec::new();
    };
    let controller = match controllers {
        "" => &V2,
        names if names.split(',').any(|name| name == "memory") => &V1,
        _ => return Vec::new(),
    };
    let own = Path::new(controller.mount).join(path.trim_start_matches('/'));
    let above = own.ancestors().take_while(|folder| folder.starts_with(controller.mount));
    above.map(|folder| (folder.to_owned(), controller)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(groups: &str, files: &[(&str, &str)]) -> CgroupMemory {
        cgroup_memory(groups, &|path| {
            let found = files.iter().find(|(known, _)| Path::new(known) == path);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    fn mib(limit: Option<u64>, used: Option<u64>) -> CgroupMemory {
        CgroupMemory {
            limit: limit.map(ByteCount::mib),
            used: used.map(ByteCount::mib),
            inactive: None,
        }
    }

    #[test]
    fn pages_that_can_be_taken_back_are_told_apart() {
        let stat =
            "anon 4096\ninactive_file 1048576\ninactive_file_more 7\ntotal_inactive_file 9\n";
        let files = [
            ("/sys/fs/cgroup/pod/memory.max", "4194304\n"),
            ("/sys/fs/cgroup/pod/memory.current", "2097152\n"),
            ("/sys/fs/cgroup/pod/memory.stat", stat),
            ("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "2097152\n"),
            ("/sys/fs/cgroup/memory/job/memory.stat", stat),
        ];
        let known = CgroupMemory { inactive: Some(ByteCount::mib(1)), ..mib(Some(4), Some(2)) };
        assert_eq!(memory("0::/pod\n", &files), known);
        let older = CgroupMemory { inactive: Some(ByteCount::bytes(9)), ..mib(None, Some(2)) };
        assert_eq!(memory("4:memory:/job\n", &files), older);
    }

    #[test]
    fn the_tightest_limit_above_us_is_told_with_its_own_use() {
        let files = [
            ("/sys/fs/cgroup/pods/one/memory.max", "max\n"),
            ("/sys/fs/cgroup/pods/one/memory.current", "1048576\n"),
            ("/sys/fs/cgroup/pods/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/pods/memory.current", "3145728\n"),
            ("/sys/fs/cgroup/memory.max", "2147483648\n"),
        ];
        assert_eq!(memory("0::/pods/one\n", &files), mib(Some(1024), Some(3)));
    }

    #[test]
    fn the_older_version_is_read_and_its_no_limit_is_none() {
        let groups = "9:name=systemd:/\n4:memory,hugetlb:/job\n2:cpuacct:/\n0::/\n";
        let used = ("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "2097152\n");
        let limit = "/sys/fs/cgroup/memory/job/memory.limit_in_bytes";
        assert_eq!(memory(groups, &[used, (limit, "536870912\n")]), mib(Some(512), Some(2)));
        assert_eq!(memory(groups, &[used, (limit, "9223372036854771712\n")]), mib(None, Some(2)));
    }

    #[test]
    fn a_container_that_sees_only_the_root_of_the_older_version_is_read() {
        let files = [("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n")];
        assert_eq!(memory("4:memory:/docker/abc\n", &files), mib(Some(1), None));
    }

    #[test]
    fn nothing_readable_is_nothing_known() {
        for groups in ["", "0::/\n", "nonsense\n", "4:cpu:/\n"] {
            assert_eq!(memory(groups, &[]), CgroupMemory::default());
            assert_eq!(oom_kills(groups, &|_| None), None);
        }
    }

    #[test]
    fn the_tightest_limit_of_processor_time_is_told_in_both_versions() {
        let limit = |groups, files: &[(&str, &str)]| {
            cpu_limit(groups, &|path| {
                let found = files.iter().find(|(known, _)| Path::new(known) == path);
                found.map(|(_, text)| (*text).to_owned())
            })
        };
        let newer = [
            ("/sys/fs/cgroup/pods/one/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/pods/cpu.max", "250000 100000\n"),
        ];
        assert_eq!(limit("0::/pods/one\n", &newer), Some(2_500));
        let older = [
            ("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n"),
            ("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ];
        assert_eq!(limit("4:cpu,cpuacct:/job\n", &older), Some(500));
        assert_eq!(limit("4:cpu:/\n0::/\n", &older), None);
        assert_eq!(limit("nonsense\n", &newer), None);
    }

    #[test]
    fn killed_processes_are_counted_in_the_own_cgroup_or_else_in_the_machine() {
        let kills = |groups, files: &[(&str, &str)]| {
            oom_kills(groups, &|path| {
                let found = files.iter().find(|(known, _)| Path::new(known) == path);
                found.map(|(_, text)| (*text).to_owned())
            })
        };
        let events = "low 0\nhigh 7\nmax 5\noom 2\noom_kill 3\noom_group_kill 0\n";
        let control = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n";
        let machine = ("/proc/vmstat", "nr_free_pages 1\noom_kill 9\n");
        let pod = ("/sys/fs/cgroup/pod/memory.events", events);
        let job = ("/sys/fs/cgroup/memory/job/memory.oom_control", control);
        assert_eq!(kills("0::/pod\n", &[pod, machine]), Some(3));
        assert_eq!(kills("4:memory:/job\n0::/\n", &[job, machine]), Some(4));
        let parent = ("/sys/fs/cgroup/memory.events", events);
        assert_eq!(kills("0::/pod\n", &[parent, machine]), Some(9), "not a neighbour's");
        assert_eq!(kills("0::/\n", &[machine]), Some(9));
    }
}
