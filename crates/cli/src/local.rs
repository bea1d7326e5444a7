//! What this machine offers: its GPUs, or its processor cut into slices.

use std::{num::NonZero, thread};

use anyhow::{Context as _, anyhow};
use orchestrator_host::{HostMemory, host_memory};
use orchestrator_plan::{Inventory, SliceOffer};
use orchestrator_types::{ByteCount, DeviceId, NodeName, SliceId};

use crate::{
    devices::{self, Chosen, DeviceChoice, Found},
    exit::Failure,
    host, say,
};

/// What this machine offers.
pub(crate) struct Machine {
    pub(crate) inventory: Inventory,
    /// What is known of the GPUs among the slices.
    pub(crate) gpus: Vec<Found>,
    /// Why it offers as much as it does, a sentence for each device.
    pub(crate) reasons: Vec<String>,
}

/// What this machine offers: its GPUs as `device` says, or its processor in `slices` slices. Says
/// what the user should know of it.
pub(crate) fn inventory(slices: u32, device: &DeviceChoice) -> Result<Inventory, Failure> {
    Ok(machine(slices, device)?.inventory)
}

/// What is to be offered.
pub(crate) struct Wish<'a> {
    /// Parts of the processor.
    pub(crate) slices: u32,
    /// Empty: [`DeviceChoice::Auto`].
    pub(crate) devices: &'a [DeviceChoice],
    /// What slices are named after.
    pub(crate) node: NodeName,
    /// The most that a slice may use.
    pub(crate) quota: Option<ByteCount>,
}

/// As [`inventory`], with everything that is known of it.
pub(crate) fn machine(slices: u32, device: &DeviceChoice) -> Result<Machine, Failure> {
    let devices = std::slice::from_ref(device);
    offered(&Wish { slices, devices, node: node_name(), quota: None })
}

/// What this machine offers of what is wished. Says what the user should know of it.
pub(crate) fn offered(wish: &Wish<'_>) -> Result<Machine, Failure> {
    let Wish { slices, devices, node, quota } = wish;
    let auto = [DeviceChoice::Auto];
    let devices = if devices.is_empty() { &auto } else { *devices };
    let gpu = devices.iter().find(|device| device.is_gpu());
    let chosen = match (*slices, devices, gpu) {
        (1, [device], _) => devices::choose(device)?,
        (1, devices, _) => several(devices)?,
        (_, [_], None) => Chosen::default(),
        (_, [_], Some(DeviceChoice::AnyGpu)) => {
            let message = "slices cut the processor, not a GPU; name one of both";
            return Err(Failure::usage(anyhow!(message)));
        }
        (_, _, Some(DeviceChoice::Only(gpu))) => {
            let message = format!("slices cut the processor, not {gpu}; name one of both");
            return Err(Failure::usage(anyhow!(message)));
        }
        _ => {
            let message = "slices cut one processor; name one device, or leave the slices out";
            return Err(Failure::usage(anyhow!(message)));
        }
    };
    let Chosen { gpus, warnings } = chosen;
    for text in warnings.into_iter().chain(crowded(*slices, processors())) {
        say(format_args!("warning: {text}"));
    }
    let mut machine = if gpus.is_empty() {
        processor(*slices, &host_memory(), node)?
    } else {
        let inventory = of_gpus(&gpus, node)?;
        let reason = |gpu: &Found| Some(format!("{} offers {}", gpu.id, gpu.reason.as_ref()?));
        let reasons = gpus.iter().filter_map(reason).collect();
        Machine { inventory, gpus, reasons }
    };
    if let Some(quota) = quota {
        for text in machine.bound(*quota) {
            say(format_args!("warning: {text}"));
        }
    }
    Ok(machine)
}

/// GPUs by name.
fn several(devices: &[DeviceChoice]) -> Result<Chosen, Failure> {
    let mut all = Chosen::default();
    for device in devices {
        if !device.is_gpu() || *device == DeviceChoice::AnyGpu {
            let message = "several `--device` name GPUs; `auto`, `gpu` and `cpu` stand alone";
            return Err(Failure::usage(anyhow!(message)));
        }
        let Chosen { gpus, warnings } = devices::choose(device)?;
        if let Some(twice) = gpus.iter().find(|gpu| all.gpus.iter().any(|old| old.id == gpu.id)) {
            let message = format!("several `--device` name {}; name each GPU once", twice.id);
            return Err(Failure::usage(anyhow!(message)));
        }
        all.gpus.extend(gpus);
        all.warnings.extend(warnings);
    }
    Ok(all)
}

impl Machine {
    /// Lowers every ceiling to `quota`; returns what the user should know of slices that have less.
    fn bound(&mut self, quota: ByteCount) -> Vec<String> {
        let mut warnings = Vec::new();
        let count = self.inventory.slices.len();
        for slice in &mut self.inventory.slices {
            if slice.memory_bytes < quota {
                let gpu = self.gpus.iter().find(|gpu| gpu.id == slice.device);
                let why = gpu.and_then(|gpu| gpu.reason.clone());
                warnings.push(above(quota, slice, why.as_deref()));
            } else {
                slice.memory_bytes = quota;
            }
        }
        if warnings.len() < count {
            self.reasons.push(format!("`--quota` bounds each slice to {quota}"));
        }
        warnings
    }
}

/// That a quota is more than its slice, what decides, and what to do. `why` is what the GPU's ceiling
/// comes from; it names the ceiling first.
fn above(quota: ByteCount, slice: &SliceOffer, why: Option<&str>) -> String {
    let SliceOffer { id, device, memory_bytes, .. } = slice;
    let why = why.map(|why| why.strip_prefix(&format!("{memory_bytes}: ")).unwrap_or(why));
    let because = why.map(|why| format!(" ({why})")).unwrap_or_default();
    let instead = match device {
        DeviceId::Cpu => "give this machine or container more memory",
        DeviceId::Gpu(_) => "free the GPU of other processes, raise the limit that decides",
        DeviceId::Mig(_) => "use an instance of a larger profile, raise the limit that decides",
    };
    format!(
        "`--quota` is {quota}, and slice {id} on {device} has {memory_bytes}{because}: it offers \
         that; {instead}, or lower the quota to at most {memory_bytes}"
    )
}

/// One slice for each GPU. The processors, which decode for them, are shared out.
fn of_gpus(gpus: &[Found], node: &NodeName) -> anyhow::Result<Inventory> {
    let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    let offer = |(index, gpu): (u32, &Found)| {
        Ok(SliceOffer {
            id: slice_name(node, index)?,
            node: node.clone(),
            device: gpu.id.clone(),
            threads: share(processors(), count, index),
            memory_bytes: gpu.ceiling_bytes.unwrap_or_default(),
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
fn processor(slices: u32, memory: &HostMemory, node: &NodeName) -> Result<Machine, Failure> {
    let (memory, why) = host::offer(memory, slices)?;
    let offer = |index: u32| {
        Ok(SliceOffer {
            id: slice_name(node, index)?,
            node: node.clone(),
            device: DeviceId::Cpu,
            threads: share(processors(), slices, index),
            memory_bytes: memory,
        })
    };
    let slices = (0..slices).map(offer).collect::<anyhow::Result<_>>()?;
    let reasons = vec![format!("the processor offers {memory} to each slice: {why}")];
    Ok(Machine { inventory: Inventory { slices }, gpus: Vec::new(), reasons })
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
pub(crate) fn node_name() -> NodeName {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let legal = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' };
    let name: String = host.unwrap_or_default().chars().map(legal).take(63).collect();
    name.parse().unwrap_or_else(|_| "localhost".parse().expect("a legal name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_slices_than_processors_are_told() {
        assert_eq!(crowded(2, 2), None);
        assert!(crowded(10, 2).unwrap().starts_with("10 slices on 2 processors: "));
        assert!(crowded(2, 1).unwrap().ends_with("1 slice would be faster"));
    }

    #[test]
    fn a_quota_above_the_slice_is_told_with_what_decides_and_what_to_do() {
        let id: DeviceId = "MIG-3b7e9a10-52c4-5d6e-9f80-000000000002".parse().unwrap();
        let bytes = ByteCount::mib(9_972);
        let gpu = Found {
            id: id.clone(),
            older_name: None,
            name: "NVIDIA H100 80GB HBM3 MIG 1g.10gb".to_owned(),
            total_bytes: Some(ByteCount::mib(9_984)),
            free_bytes: Some(bytes),
            ceiling_bytes: Some(bytes),
            reason: Some(format!(
                "{bytes}: of the device's 9.75 GiB, other processes use 12.00 MiB"
            )),
            warnings: Vec::new(),
            usable: true,
        };
        let slice = |number: u32, device: &DeviceId, memory_bytes| SliceOffer {
            id: format!("vm.{number}").parse().unwrap(),
            node: "vm".parse().unwrap(),
            device: device.clone(),
            threads: 1,
            memory_bytes,
        };
        let slices = vec![
            slice(0, &id, bytes),
            slice(1, &DeviceId::Cpu, ByteCount::gib(2)),
            slice(2, &DeviceId::Cpu, ByteCount::gib(64)),
        ];
        let inventory = Inventory { slices };
        let mut machine = Machine { inventory, gpus: vec![gpu], reasons: Vec::new() };
        let told = machine.bound(ByteCount::gib(20)).join("\n");
        insta::assert_snapshot!(told, @r"
        `--quota` is 20.00 GiB, and slice vm.0 on MIG-3b7e9a10-52c4-5d6e-9f80-000000000002 has 9.74 GiB (of the device's 9.75 GiB, other processes use 12.00 MiB): it offers that; use an instance of a larger profile, raise the limit that decides, or lower the quota to at most 9.74 GiB
        `--quota` is 20.00 GiB, and slice vm.1 on cpu has 2.00 GiB: it offers that; give this machine or container more memory, or lower the quota to at most 2.00 GiB
        ");
        let offered: Vec<_> = machine.inventory.slices.iter().map(|it| it.memory_bytes).collect();
        assert_eq!(offered, [bytes, ByteCount::gib(2), ByteCount::gib(20)]);
        assert_eq!(machine.reasons.len(), 1, "it bounds one of them");
        machine.inventory.slices.truncate(2);
        machine.reasons.clear();
        machine.bound(ByteCount::gib(20));
        assert_eq!(machine.reasons, Vec::<String>::new(), "it bounds nothing");
    }

    #[test]
    fn every_slice_computes() {
        let memory = HostMemory { available: Some(ByteCount::gib(8)), ..HostMemory::default() };
        for slices in [1, 2, 3, 64] {
            let Machine { inventory, reasons, .. } =
                processor(slices, &memory, &node_name()).unwrap();
            assert!(reasons[0].starts_with("the processor offers "), "{reasons:?}");
            assert_eq!(inventory.slices.len(), slices as usize);
            assert!(inventory.slices.iter().all(|slice| slice.threads >= 1));
        }
    }
}
