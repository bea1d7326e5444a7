//! What this machine offers: its GPUs, or its processor cut into slices.

use std::{fs, num::NonZero, path::Path, thread};

use anyhow::{Context as _, anyhow};
use orchestrator_plan::{Inventory, SliceOffer};
use orchestrator_types::{ByteCount, DeviceId, NodeName, SliceId};

use crate::{
    devices::{self, Chosen, DeviceChoice, Found},
    exit::Failure,
    say,
};

/// Share of the free host memory that slices may use when no cgroup sets a limit, in per cent.
const SHARE_OF_FREE: u64 = 80;

/// What this machine offers: its GPUs as `device` says, or its processor in `slices` slices. Says
/// what the user should know of it.
pub(crate) fn inventory(slices: u32, device: &DeviceChoice) -> Result<Inventory, Failure> {
    Ok(machine(slices, device)?.0)
}

/// As [`inventory`], with what is known of the GPUs among the slices.
pub(crate) fn machine(
    slices: u32,
    device: &DeviceChoice,
) -> Result<(Inventory, Vec<Found>), Failure> {
    let chosen = match (slices, device) {
        (1, device) => devices::choose(device)?,
        (_, DeviceChoice::Auto | DeviceChoice::Only(DeviceId::Cpu)) => Chosen::default(),
        (_, DeviceChoice::Only(device)) => {
            let message =
                format!("`--local-slices` cuts the processor, not {device}; name one of both");
            return Err(Failure::usage(anyhow!(message)));
        }
    };
    let Chosen { gpus, warnings } = chosen;
    for text in warnings.into_iter().chain(crowded(slices, processors())) {
        say(format_args!("warning: {text}"));
    }
    let inventory = if gpus.is_empty() { processor(slices)? } else { of_gpus(&gpus)? };
    Ok((inventory, gpus))
}

/// One slice for each GPU. The processors, which decode for them, are shared out.
fn of_gpus(gpus: &[Found]) -> anyhow::Result<Inventory> {
    let node = node_name();
    let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    let offer = |(index, gpu): (u32, &Found)| {
        Ok(SliceOffer {
            id: slice_name(&node, index)?,
            node: node.clone(),
            device: gpu.id.clone(),
            threads: share(processors(), count, index),
            memory_bytes: gpu.ceiling_bytes,
        })
    };
    Ok(Inventory { slices: (0..).zip(gpus).map(offer).collect::<anyhow::Result<_>>()? })
}

fn slice_name(node: &NodeName, index: u32) -> anyhow::Result<SliceId> {
    format!("{node}.{index}").parse().context("failed to name a slice")
}

/// Processors of slice `index` of `slices`: the first get those that do not divide, each has one.
fn share(processors: u32, slices: u32, index: u32) -> u32 {
    (processors / slices + u32::from(index < processors % slices)).max(1)
}

/// This machine's processor in `slices` equal slices. Threads come from the processors that this
/// process may use (cgroup quota and affinity included); a slice has at least one.
fn processor(slices: u32) -> anyhow::Result<Inventory> {
    let node = node_name();
    let memory = ByteCount::bytes(memory()?.as_u64() / u64::from(slices));
    let offer = |index: u32| {
        Ok(SliceOffer {
            id: slice_name(&node, index)?,
            node: node.clone(),
            device: DeviceId::Cpu,
            threads: share(processors(), slices, index),
            memory_bytes: memory,
        })
    };
    Ok(Inventory { slices: (0..slices).map(offer).collect::<anyhow::Result<_>>()? })
}

/// What to tell who cuts `slices` slices out of fewer processors.
fn crowded(slices: u32, processors: u32) -> Option<String> {
    let plural = if processors == 1 { "" } else { "s" };
    (slices > processors).then(|| {
        format!(
            "{slices} slices on {processors} processor{plural}: each computes with one thread, and \
             they share the processors; {processors} slice{plural} would be faster"
        )
    })
}

fn processors() -> u32 {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    u32::try_from(processors).unwrap_or(u32::MAX)
}

/// The host's name, as far as it makes a legal name.
fn node_name() -> NodeName {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let legal = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' };
    let name: String = host.unwrap_or_default().chars().map(legal).take(63).collect();
    name.parse().unwrap_or_else(|_| "localhost".parse().expect("a legal name"))
}

/// Host memory that slices may share: what the cgroup leaves, or a share of what is free.
fn memory() -> anyhow::Result<ByteCount> {
    let text = fs::read_to_string("/proc/meminfo").context("failed to read /proc/meminfo")?;
    let free = available(&text).context("/proc/meminfo names no MemAvailable")?;
    let free = ByteCount::bytes(free.as_u64() / 100 * SHARE_OF_FREE);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = cgroup_limit(&groups, |path| fs::read_to_string(path).ok());
    Ok(limit.map_or(free, |limit| limit.min(free)))
}

fn available(meminfo: &str) -> Option<ByteCount> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok().map(ByteCount::kib)
}

/// The smallest memory limit on the way from this process's cgroup to the root (version 2), or the
/// memory controller's limit (version 1).
fn cgroup_limit(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<ByteCount> {
    let mut limits: Vec<u64> = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (mount, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            names if names.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let own = Path::new(mount).join(path.trim_start_matches('/'));
        let folders = own.ancestors().take_while(|folder| folder.starts_with(mount));
        // "max" is no number, and no limit.
        let limit = |folder: &Path| read(&folder.join(file))?.trim().parse::<u64>().ok();
        limits.extend(folders.filter_map(limit));
    }
    limits.into_iter().min().map(ByteCount::bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_cgroup_above_us_counts() {
        let read = |path: &Path| match path.to_str()? {
            "/sys/fs/cgroup/pods/one/memory.max" => Some("max\n".to_owned()),
            "/sys/fs/cgroup/pods/memory.max" => Some("1073741824\n".to_owned()),
            "/sys/fs/cgroup/memory/job/memory.limit_in_bytes" => Some("536870912\n".to_owned()),
            _ => None,
        };
        assert_eq!(cgroup_limit("0::/pods/one\n", read), Some(ByteCount::gib(1)));
        let both = "9:cpu,memory:/job\n0::/pods/one\n";
        assert_eq!(cgroup_limit(both, read), Some(ByteCount::mib(512)));
        assert_eq!(cgroup_limit("0::/\nnonsense\n", read), None);
    }

    #[test]
    fn free_memory_is_read_in_kibibytes() {
        let text = "MemTotal:       24000 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(available(text), Some(ByteCount::mib(2)));
    }

    #[test]
    fn more_slices_than_processors_are_told() {
        assert_eq!(crowded(2, 2), None);
        assert!(crowded(10, 2).unwrap().starts_with("10 slices on 2 processors: "));
        assert!(crowded(2, 1).unwrap().ends_with("1 slice would be faster"));
    }

    #[test]
    fn every_slice_computes() {
        for slices in [1, 2, 3, 64] {
            let inventory = processor(slices).unwrap();
            assert_eq!(inventory.slices.len(), slices as usize);
            assert!(inventory.slices.iter().all(|slice| slice.threads >= 1));
        }
    }
}
