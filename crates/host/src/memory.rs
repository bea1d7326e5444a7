//! Host memory of this process and what of the machine's is free.
//!
//! Invariant: what a file does not tell is `None`, never zero.

use std::{fs, path::Path};

use orchestrator_types::ByteCount;
use serde::{Deserialize, Serialize};

use crate::cgroup::{self, CgroupMemory, cgroup_memory};

/// Inode of the first pid namespace of every Linux kernel.
const HOST_PIDS: &str = "pid:[4026531836]";

/// Host memory of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMemory {
    /// Resident set now.
    pub resident: Option<ByteCount>,
    /// Largest resident set.
    pub resident_peak: Option<ByteCount>,
    /// Resident pages that belong to no file.
    pub anonymous: Option<ByteCount>,
    /// Resident pages of mapped files and shared memory: weights in the page cache, program code.
    pub mapped: Option<ByteCount>,
    /// The tightest limit of the cgroups above the process.
    pub cgroup_limit: Option<ByteCount>,
    /// Use of the cgroup with that limit; of the nearest, without a limit.
    pub cgroup_used: Option<ByteCount>,
    /// Part of that use which the kernel takes back first: file pages that nobody touched lately.
    pub cgroup_inactive: Option<ByteCount>,
    /// What the whole machine can still give without swapping.
    pub available: Option<ByteCount>,
}

/// Host memory of this process.
pub fn host_memory() -> HostMemory {
    read_host_memory(&|path| fs::read_to_string(path).ok())
}

/// As [`host_memory`], with `read` in place of the file system.
///
/// `/proc/self/status` counts pages in batches and is cheap; what it lacks on old or emulated
/// kernels comes from `/proc/self/smaps_rollup`, which walks all mappings.
pub fn read_host_memory(read: &dyn Fn(&Path) -> Option<String>) -> HostMemory {
    let file = |path: &str| read(Path::new(path)).unwrap_or_default();
    let mut memory = from_status(&file("/proc/self/status"));
    if memory.anonymous.is_none() || memory.mapped.is_none() {
        let rollup = from_rollup(&file("/proc/self/smaps_rollup"));
        memory.resident = memory.resident.or(rollup.resident);
        memory.anonymous = memory.anonymous.or(rollup.anonymous);
        memory.mapped = memory.mapped.or(rollup.mapped);
    }
    let CgroupMemory { limit, used, inactive } = cgroup_memory(&file("/proc/self/cgroup"), read);
    HostMemory {
        cgroup_limit: limit,
        cgroup_used: used,
        cgroup_inactive: inactive,
        available: amount(&file("/proc/meminfo"), "MemAvailable"),
        ..memory
    }
}

/// How many processes near this one the kernel's out-of-memory killer has taken so far: in its
/// cgroup, or else on the machine. `None` where the kernel does not count.
pub fn oom_kills() -> Option<u64> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    cgroup::oom_kills(&read(Path::new("/proc/self/cgroup")).unwrap_or_default(), &read)
}

/// How many processors' time the cgroups above this process let it have, in thousandths. `None`
/// without a limit.
pub fn cpu_limit() -> Option<u64> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    cgroup::cpu_limit(&read(Path::new("/proc/self/cgroup")).unwrap_or_default(), &read)
}

/// This process's pid as the NVIDIA driver sees it: the host's. `None` inside a pid namespace, where
/// nothing tells it.
pub fn driver_pid() -> Option<u32> {
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    (namespace.as_os_str() == HOST_PIDS).then(std::process::id)
}

fn from_status(text: &str) -> HostMemory {
    let file = amount(text, "RssFile");
    let shared = amount(text, "RssShmem");
    HostMemory {
        resident: amount(text, "VmRSS"),
        resident_peak: amount(text, "VmHWM"),
        anonymous: amount(text, "RssAnon"),
        mapped: file.and_then(|file| file.checked_add(shared.unwrap_or_default())),
        ..HostMemory::default()
    }
}

fn from_rollup(text: &str) -> HostMemory {
    let (resident, anonymous) = (amount(text, "Rss"), amount(text, "Anonymous"));
    HostMemory {
        resident,
        anonymous,
        mapped: resident.and_then(|resident| resident.checked_sub(anonymous?)),
        ..HostMemory::default()
    }
}

/// The amount behind `name:`, which the kernel writes in kibibytes.
fn amount(text: &str, name: &str) -> Option<ByteCount> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    ByteCount::kib(1).checked_mul(kib)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\torchestrator-ex\nUmask:\t0022\nPid:\t3915\nVmPeak:\t 9874324 kB\n\
        VmSize:\t 9874324 kB\nVmLck:\t       0 kB\nVmPin:\t       0 kB\nVmHWM:\t 1441792 kB\n\
        VmRSS:\t 1310720 kB\nRssAnon:\t  262144 kB\nRssFile:\t 1040384 kB\nRssShmem:\t    8192 kB\n\
        VmData:\t  900124 kB\nThreads:\t7\n";
    const OLD_STATUS: &str = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nThreads:\t1\n";
    const ROLLUP: &str = "5574e7f3f000-7ffff2220000 ---p 00000000 00:00 0    [rollup]\n\
        Rss:                1736 kB\nPss:                 243 kB\nPss_Anon:            112 kB\n\
        Shared_Clean:       1584 kB\nAnonymous:           112 kB\nSwap:                  0 kB\n";

    fn read(files: &[(&str, &str)]) -> HostMemory {
        read_host_memory(&|path| {
            let found = files.iter().find(|(known, _)| Path::new(known) == path);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn mapped_and_anonymous_pages_are_told_apart() {
        let memory = read(&[("/proc/self/status", STATUS), ("/proc/self/smaps_rollup", ROLLUP)]);
        let expected = HostMemory {
            resident: Some(ByteCount::mib(1280)),
            resident_peak: Some(ByteCount::mib(1408)),
            anonymous: Some(ByteCount::mib(256)),
            mapped: Some(ByteCount::mib(1024)),
            ..HostMemory::default()
        };
        assert_eq!(memory, expected);
    }

    #[test]
    fn an_old_kernel_is_read_through_its_mappings() {
        let memory =
            read(&[("/proc/self/status", OLD_STATUS), ("/proc/self/smaps_rollup", ROLLUP)]);
        let expected = HostMemory {
            resident: Some(ByteCount::kib(1024)),
            resident_peak: Some(ByteCount::kib(2048)),
            anonymous: Some(ByteCount::kib(112)),
            mapped: Some(ByteCount::kib(1624)),
            ..HostMemory::default()
        };
        assert_eq!(memory, expected);
    }

    #[test]
    fn the_cgroup_is_part_of_the_reading() {
        let memory = read(&[
            ("/proc/self/cgroup", "0::/pod\n"),
            ("/sys/fs/cgroup/pod/memory.max", "1048576\n"),
            ("/sys/fs/cgroup/pod/memory.current", "4096\n"),
        ]);
        assert_eq!(memory.cgroup_limit, Some(ByteCount::mib(1)));
        assert_eq!(memory.cgroup_used, Some(ByteCount::kib(4)));
    }

    #[test]
    fn what_the_machine_can_still_give_is_part_of_the_reading() {
        let text = "MemTotal:       24000 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(read(&[("/proc/meminfo", text)]).available, Some(ByteCount::mib(2)));
    }

    #[test]
    fn missing_and_malformed_files_tell_nothing() {
        assert_eq!(read(&[]), HostMemory::default());
        let odd = "VmRSS:\t lots kB\nVmHWM:\t 12\nRssAnonymous:\t 1 kB\nRssFile:\t99999999999999999999 kB\n";
        assert_eq!(read(&[("/proc/self/status", odd)]), HostMemory::default());
    }

    #[test]
    fn this_process_is_resident_and_its_parts_add_up() {
        let memory = host_memory();
        let (resident, peak) = (memory.resident.unwrap(), memory.resident_peak.unwrap());
        assert!(resident > ByteCount::ZERO && peak >= resident);
        assert!(memory.anonymous.unwrap() <= resident && memory.mapped.unwrap() <= resident);
    }
}
