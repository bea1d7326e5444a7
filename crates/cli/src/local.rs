//! What this machine offers: its GPUs, or its processor cut into slices.

use std::{num::NonZero, thread};

use anyhow::{Context as _, anyhow};
use orchestrator_host::{HostMemory, host_memory};
use orchestrator_plan::{Inventory, SliceOffer};
use orchestrator_types::{DeviceId, NodeName, SliceId};

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

/// As [`inventory`], with everything that is known of it.
pub(crate) fn machine(slices: u32, device: &DeviceChoice) -> Result<Machine, Failure> {
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
    if gpus.is_empty() {
        return processor(slices, &host_memory());
    }
    let inventory = of_gpus(&gpus)?;
    let reason = |gpu: &Found| Some(format!("{} offers {}", gpu.id, gpu.reason.as_ref()?));
    let reasons = gpus.iter().filter_map(reason).collect();
    Ok(Machine { inventory, gpus, reasons })
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
fn processor(slices: u32, memory: &HostMemory) -> Result<Machine, Failure> {
    let node = node_name();
    let (memory, why) = host::offer(memory, slices)?;
    let offer = |index: u32| {
        Ok(SliceOffer {
            id: slice_name(&node, index)?,
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
fn node_name() -> NodeName {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let legal = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' };
    let name: String = host.unwrap_or_default().chars().map(legal).take(63).collect();
    name.parse().unwrap_or_else(|_| "localhost".parse().expect("a legal name"))
}

#[cfg(test)]
mod tests {
    use orchestrator_types::ByteCount;

    use super::*;

    #[test]
    fn more_slices_than_processors_are_told() {
        assert_eq!(crowded(2, 2), None);
        assert!(crowded(10, 2).unwrap().starts_with("10 slices on 2 processors: "));
        assert!(crowded(2, 1).unwrap().ends_with("1 slice would be faster"));
    }

    #[test]
    fn every_slice_computes() {
        let memory = HostMemory { available: Some(ByteCount::gib(8)), ..HostMemory::default() };
        for slices in [1, 2, 3, 64] {
            let Machine { inventory, reasons, .. } = processor(slices, &memory).unwrap();
            assert!(reasons[0].starts_with("the processor offers "), "{reasons:?}");
            assert_eq!(inventory.slices.len(), slices as usize);
            assert!(inventory.slices.iter().all(|slice| slice.threads >= 1));
        }
    }
}
