//! What of the host's memory slices may use: beside a processor's tensors, and beside a GPU.
//!
//! Invariant: what is offered, with what the programs themselves take, is within the tightest
//! cgroup above this process.

use anyhow::Context as _;
use orchestrator_footprint::{Kind, prior_rows};
use orchestrator_host::HostMemory;
use orchestrator_ledger::{BelowCgroup, cgroup_allows};
use orchestrator_plan::Inventory;
use orchestrator_spec::Batch;
use orchestrator_types::{ByteCount, DeviceId};

use crate::{
    evaluation::Checked,
    exit::{Exit, Failure},
};

/// Share of the machine's free memory that slices may use, in per cent.
const SHARE_OF_FREE: u64 = 80;
/// Most that decoded samples may take.
const MOST_DECODED: ByteCount = ByteCount::gib(4);
/// Resident memory of an executor beside its tensors: libtorch, threads, code (measured).
const EXECUTOR: ByteCount = ByteCount::mib(160);
/// The same with CUDA, most of it kernels on their way to the device (measured: 1.2 GiB).
const CUDA_EXECUTOR: ByteCount = ByteCount::mib(1229);
/// Client, coordinator and agent.
const BESIDE: ByteCount = ByteCount::mib(64);
/// Batches of crops that wait for a GPU: one is filled while the other is computed.
const BATCHES: u64 = 2;

/// What each of `slices` processor slices may hold, and which bound decided, in a sentence.
pub(crate) fn offer(memory: &HostMemory, slices: u32) -> Result<(ByteCount, String), Failure> {
    let free = memory.available.context("/proc/meminfo names no MemAvailable")?;
    let share = ByteCount::bytes(free.as_u64() / 100 * SHARE_OF_FREE);
    let each = |bytes: ByteCount| ByteCount::bytes(bytes.as_u64() / u64::from(slices.max(1)));
    let apart = sum(&[BESIDE, times(EXECUTOR, slices.into())]);
    let by_free = format!("{SHARE_OF_FREE} % of the machine's free {free}");
    let Some(limit) = memory.cgroup_limit else {
        return Ok((each(share), format!("{by_free} decide; no cgroup sets a limit")));
    };
    let used = in_use(memory);
    let taken = sum(&[used, apart]);
    cgroup_allows(Some(limit), taken).map_err(refused)?;
    let room = limit.checked_sub(taken).unwrap_or_default();
    let by_cgroup = format!(
        "the cgroup of this process, whose limit of {limit} leaves {room}: {used} are in use, and \
         {apart} are for the programs themselves"
    );
    Ok(if share <= room {
        (each(share), format!("{by_free} decide, which are {share}, before {by_cgroup}"))
    } else {
        (each(room), format!("what decides is {by_cgroup}"))
    })
}

/// What decoded samples may take: a tenth of what is free, within the cgroup too. Slices are offered
/// [`SHARE_OF_FREE`], so this is half of the rest, and safe where the scratch folder is a tmpfs. More
/// than [`MOST_DECODED`] serves no sweep: trials share a shard before they go to the next.
pub(crate) fn decoded(memory: &HostMemory) -> ByteCount {
    let free = memory.available.unwrap_or_default();
    let room = memory.cgroup_limit.map(|it| it.checked_sub(in_use(memory)).unwrap_or_default());
    let free = room.unwrap_or(free).min(free);
    ByteCount::bytes(free.as_u64() / 10).min(MOST_DECODED)
}

/// Whether the cgroup lets the GPUs' executors have what they need on the host.
pub(crate) fn beside_gpus(
    memory: &HostMemory,
    inventory: &Inventory,
    checked: &Checked,
) -> Result<(), Failure> {
    let gpus = inventory.slices.iter().filter(|slice| slice.device != DeviceId::Cpu).count();
    allows(memory, gpus as u64, crops(checked)).map_err(refused)
}

fn allows(memory: &HostMemory, gpus: u64, crops: ByteCount) -> Result<(), BelowCgroup> {
    if gpus == 0 {
        return Ok(());
    }
    let each = sum(&[CUDA_EXECUTOR, times(crops, BATCHES)]);
    cgroup_allows(memory.cgroup_limit, sum(&[in_use(memory), BESIDE, times(each, gpus)]))
}

/// The largest batch of crops of the sweep, as bytes of colour.
fn crops(checked: &Checked) -> ByteCount {
    let trials = checked.evaluation.trials();
    let batches = trials.iter().filter_map(|trial| {
        let model = checked.facts.models.get(trial.model)?.as_ref().ok()?;
        let rows = match trial.batch {
            Batch::Auto => prior_rows(Kind::Cuda, model.vision.tokens),
            Batch::Fixed(rows) => rows.get(),
        };
        Some(times(ByteCount::bytes(3 * u64::from(model.image_size).pow(2)), rows.into()))
    });
    batches.max().unwrap_or_default()
}

/// What of the cgroup's use does not go when others need it.
fn in_use(memory: &HostMemory) -> ByteCount {
    let used = memory.cgroup_used.unwrap_or_default();
    used.checked_sub(memory.cgroup_inactive.unwrap_or_default()).unwrap_or_default()
}

fn refused(error: BelowCgroup) -> Failure {
    Failure::new(Exit::DoesNotFit, error)
}

fn times(bytes: ByteCount, count: u64) -> ByteCount {
    bytes.checked_mul(count).unwrap_or(ByteCount::bytes(u64::MAX))
}

fn sum(parts: &[ByteCount]) -> ByteCount {
    ByteCount::bytes(parts.iter().fold(0, |sum, bytes| bytes.as_u64().saturating_add(sum)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(available: u64, cgroup: Option<(u64, u64, u64)>) -> HostMemory {
        HostMemory {
            available: Some(ByteCount::mib(available)),
            cgroup_limit: cgroup.map(|(limit, ..)| ByteCount::mib(limit)),
            cgroup_used: cgroup.map(|(_, used, _)| ByteCount::mib(used)),
            cgroup_inactive: cgroup.map(|(.., inactive)| ByteCount::mib(inactive)),
            ..HostMemory::default()
        }
    }

    #[test]
    fn the_programs_themselves_and_what_is_used_come_off_the_cgroups_limit() {
        let (each, why) = offer(&memory(16_000, Some((1024, 300, 200))), 1).unwrap();
        assert_eq!(each, ByteCount::mib(1024 - 100 - 64 - 160));
        insta::assert_snapshot!(why, @"what decides is the cgroup of this process, whose limit of 1.00 GiB leaves 700.00 MiB: 100.00 MiB are in use, and 224.00 MiB are for the programs themselves");
        let (each, _) = offer(&memory(16_000, Some((1024, 300, 200))), 2).unwrap();
        assert_eq!(each, ByteCount::mib((1024 - 100 - 64 - 320) / 2));
    }

    #[test]
    fn never_more_than_a_share_of_what_is_free() {
        let (each, why) = offer(&memory(1000, None), 2).unwrap();
        assert_eq!(each, ByteCount::mib(400));
        insta::assert_snapshot!(why, @"80 % of the machine's free 1000.00 MiB decide; no cgroup sets a limit");
        let (each, why) = offer(&memory(1000, Some((8192, 0, 0))), 1).unwrap();
        assert_eq!(each, ByteCount::mib(800));
        insta::assert_snapshot!(why, @"80 % of the machine's free 1000.00 MiB decide, which are 800.00 MiB, before the cgroup of this process, whose limit of 8.00 GiB leaves 7.78 GiB: 0 B are in use, and 224.00 MiB are for the programs themselves");
    }

    #[test]
    fn decoded_samples_get_a_tenth_of_what_is_free() {
        assert_eq!(decoded(&memory(1000, None)), ByteCount::mib(100));
        assert_eq!(decoded(&memory(1000, Some((500, 300, 200)))), ByteCount::mib(40));
        assert_eq!(decoded(&memory(100_000, None)), ByteCount::gib(4));
        assert_eq!(decoded(&HostMemory::default()), ByteCount::ZERO, "nothing is known");
    }

    #[test]
    fn a_cgroup_that_the_programs_alone_fill_is_refused() {
        let failure = offer(&memory(16_000, Some((256, 100, 0))), 1).unwrap_err();
        assert_eq!(failure.exit, Exit::DoesNotFit);
        insta::assert_snapshot!(failure.text(), @"never fits: 324.00 MiB of host memory needed, and the cgroup of this process allows 256.00 MiB; 68.00 MiB missing; raise the container's memory limit, or stage fewer samples");
    }

    #[test]
    fn gpus_need_host_memory_for_cuda_and_two_batches() {
        let cgroup = |limit| memory(64_000, Some((limit, 0, 0)));
        let need = 64 + 2 * (1229 + 2 * 150);
        assert_eq!(allows(&cgroup(need), 2, ByteCount::mib(150)), Ok(()));
        let refused = allows(&cgroup(need - 1), 2, ByteCount::mib(150)).unwrap_err();
        insta::assert_snapshot!(refused, @"never fits: 3.05 GiB of host memory needed, and the cgroup of this process allows 3.05 GiB; 1.00 MiB missing; raise the container's memory limit, or stage fewer samples");
        assert_eq!(allows(&cgroup(1), 0, ByteCount::mib(150)), Ok(()), "no GPU, no need");
        assert_eq!(allows(&memory(1, None), 8, ByteCount::gib(1)), Ok(()), "no limit");
    }
}
