//! What a slice may have: the smallest of several bounds, and which of them decided.
//!
//! Invariant: the outcome is one of the bounds (or what is left of one), never above any of them.

use std::fmt;

use orchestrator_types::ByteCount;

/// What bounds a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// What the device has, or what others leave of it.
    Device,
    /// What the worker offers.
    Worker,
    /// What the evaluation asks for at most.
    Evaluation,
    /// What NVIDIA's MPS allows one process: `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`.
    Mps,
    /// What HAMi allows a container: `CUDA_DEVICE_MEMORY_LIMIT`.
    Hami,
    /// What the cgroup of the process allows; bounds processor slices.
    Cgroup,
}

/// A device as it was before anything of ours ran on it, and what is not for the slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceRoom {
    /// All of the device's memory.
    pub total: ByteCount,
    /// What no process used.
    pub free: ByteCount,
    /// Promised to other slices of the same device, used or not.
    pub others: ByteCount,
    /// Kept free for nobody.
    pub reserve: ByteCount,
    /// MPS's limit for one process.
    pub mps: Option<ByteCount>,
    /// HAMi's limit for all processes of the container.
    pub hami: Option<ByteCount>,
}

/// What a worker can offer as one slice of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ceiling {
    /// How much.
    pub bytes: ByteCount,
    /// What it comes from.
    pub decided_by: Bound,
    /// Why this much, in a sentence.
    pub reason: String,
    /// Set when other processes use a tenth of the device or more.
    pub warning: Option<String>,
}

/// Use by other processes, as a divisor of the total, from which on it is worth a warning.
const NOTABLE: u64 = 10;

/// What the device offers one slice, whatever else it has to hold.
pub fn slice_ceiling(room: &DeviceRoom) -> Ceiling {
    let less = |bytes: ByteCount, taken: &[ByteCount]| {
        let taken = taken.iter().fold(0_u64, |sum, bytes| sum.saturating_add(bytes.as_u64()));
        ByteCount::bytes(bytes.as_u64().saturating_sub(taken))
    };
    let bounds = [
        (Bound::Device, Some(less(room.free.min(room.total), &[room.others, room.reserve]))),
        (Bound::Mps, room.mps),
        (Bound::Hami, room.hami.map(|limit| less(limit, &[room.others]))),
    ];
    let (decided_by, bytes) = smallest(&bounds).unwrap_or((Bound::Device, ByteCount::ZERO));
    let used = less(room.total, &[room.free]);
    Ceiling {
        bytes,
        decided_by,
        reason: match decided_by {
            Bound::Device => format!(
                "{bytes}: of the device's {}, other processes use {used}, other slices have {}, \
                 and {} stay in reserve",
                room.total, room.others, room.reserve
            ),
            bound => format!("{bytes}: {bound}; the device has {}", room.total),
        },
        warning: (used.as_u64() > 0 && used.as_u64() >= room.total.as_u64() / NOTABLE).then(|| {
            format!(
                "other processes use {used} of the device's {}; the slice offers {bytes}, and \
                 may have to be refused if they grow",
                room.total
            )
        }),
    }
}

/// Everything that bounds a slice while an evaluation uses it; `None` bounds nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// All memory of the device, as its runtime tells it.
    pub device: ByteCount,
    /// What the worker offers.
    pub worker: Option<ByteCount>,
    /// The evaluation's quota.
    pub evaluation: Option<ByteCount>,
    /// MPS's limit for one process.
    pub mps: Option<ByteCount>,
    /// HAMi's limit for the container.
    pub hami: Option<ByteCount>,
    /// The cgroup's limit; only for processor slices.
    pub cgroup: Option<ByteCount>,
}

/// The quota that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// How much.
    pub bytes: ByteCount,
    /// Which bound decided.
    pub decided_by: Bound,
    /// Which bound decided and what the others would have allowed, in a sentence.
    pub reason: String,
    /// What was asked for and cannot be had.
    pub warnings: Vec<String>,
}

impl Effective {
    /// The smallest of the bounds.
    pub fn of(bounds: &Bounds) -> Self {
        let all = [
            (Bound::Evaluation, bounds.evaluation),
            (Bound::Worker, bounds.worker),
            (Bound::Mps, bounds.mps),
            (Bound::Hami, bounds.hami),
            (Bound::Cgroup, bounds.cgroup),
            (Bound::Device, Some(bounds.device)),
        ];
        let (decided_by, bytes) = smallest(&all).unwrap_or((Bound::Device, bounds.device));
        let warning = |(bound, limit): &(Bound, Option<ByteCount>)| {
            let limit = limit.filter(|limit| *limit > bytes)?;
            let wished = match bound {
                Bound::Evaluation => true,
                // Less than the worker offers is what a quota is for.
                Bound::Worker => limit > bounds.device,
                _ => false,
            };
            wished.then(|| format!("{bound} of {limit} cannot be had; {bytes} holds: {decided_by}"))
        };
        let others = all.iter().filter(|(bound, _)| *bound != decided_by);
        let allowed: Vec<String> = others
            .filter_map(|(bound, limit)| Some(format!("{bound} would allow {}", (*limit)?)))
            .collect();
        let beside = if allowed.is_empty() { "" } else { "; " };
        Self {
            bytes,
            decided_by,
            reason: format!("{bytes}: {decided_by}{beside}{}", allowed.join(", ")),
            warnings: all.iter().filter_map(warning).collect(),
        }
    }
}

/// The smallest bound; among equals the first.
fn smallest(bounds: &[(Bound, Option<ByteCount>)]) -> Option<(Bound, ByteCount)> {
    bounds.iter().filter_map(|(bound, limit)| Some((*bound, (*limit)?))).min_by_key(|(_, b)| *b)
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "the device's memory",
            Self::Worker => "the worker's ceiling",
            Self::Evaluation => "the evaluation's quota",
            Self::Mps => "the MPS limit CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            Self::Hami => "the HAMi limit CUDA_DEVICE_MEMORY_LIMIT",
            Self::Cgroup => "the cgroup's memory limit",
        })
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use proptest::prelude::*;

    use super::*;

    const fn gib(n: u64) -> ByteCount {
        ByteCount::gib(n)
    }

    #[test]
    fn a_half_full_device_offers_what_the_other_process_leaves() {
        let room =
            DeviceRoom { total: gib(80), free: gib(40), reserve: gib(1), ..DeviceRoom::default() };
        let ceiling = slice_ceiling(&room);
        assert_eq!((ceiling.bytes, ceiling.decided_by), (gib(39), Bound::Device));
        assert_snapshot!(ceiling.reason, @"39.00 GiB: of the device's 80.00 GiB, other processes use 40.00 GiB, other slices have 0 B, and 1.00 GiB stay in reserve");
        assert_snapshot!(ceiling.warning.unwrap(), @"other processes use 40.00 GiB of the device's 80.00 GiB; the slice offers 39.00 GiB, and may have to be refused if they grow");
    }

    #[test]
    fn a_device_that_others_fill_offers_nothing() {
        let room =
            DeviceRoom { total: gib(80), free: gib(1), others: gib(2), ..Default::default() };
        assert_eq!(slice_ceiling(&room).bytes, ByteCount::ZERO);
    }

    #[test]
    fn slices_of_one_device_share_it_and_an_empty_device_is_no_warning() {
        let room = DeviceRoom {
            total: gib(80),
            free: gib(79),
            others: gib(39),
            reserve: gib(1),
            ..Default::default()
        };
        let ceiling = slice_ceiling(&room);
        assert_eq!((ceiling.bytes, ceiling.warning), (gib(39), None));
    }

    #[test]
    fn limits_of_the_environment_bound_the_ceiling() {
        let room = DeviceRoom { total: gib(80), free: gib(80), ..Default::default() };
        let mps = slice_ceiling(&DeviceRoom { mps: Some(gib(4)), others: gib(2), ..room });
        // One process's limit is not shared with others.
        assert_eq!((mps.bytes, mps.decided_by), (gib(4), Bound::Mps));
        assert_snapshot!(mps.reason, @"4.00 GiB: the MPS limit CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; the device has 80.00 GiB");
        let hami = slice_ceiling(&DeviceRoom { hami: Some(gib(4)), others: gib(3), ..room });
        assert_eq!((hami.bytes, hami.decided_by), (gib(1), Bound::Hami));
    }

    #[test]
    fn the_smallest_bound_decides_and_says_so() {
        let bounds = Bounds {
            device: gib(80),
            worker: Some(gib(40)),
            evaluation: Some(gib(4)),
            ..Bounds::default()
        };
        let effective = Effective::of(&bounds);
        assert_eq!((effective.bytes, effective.decided_by), (gib(4), Bound::Evaluation));
        assert_eq!(effective.warnings, Vec::<String>::new());
        assert_snapshot!(effective.reason, @"4.00 GiB: the evaluation's quota; the worker's ceiling would allow 40.00 GiB, the device's memory would allow 80.00 GiB");
        let alone = Effective::of(&Bounds { device: gib(80), ..Bounds::default() });
        assert_snapshot!(alone.reason, @"80.00 GiB: the device's memory");
        for (bounds, bound) in [
            (Bounds { mps: Some(gib(1)), ..bounds }, Bound::Mps),
            (Bounds { hami: Some(gib(1)), ..bounds }, Bound::Hami),
            (Bounds { cgroup: Some(gib(1)), ..bounds }, Bound::Cgroup),
            (Bounds { worker: Some(gib(1)), ..bounds }, Bound::Worker),
            (Bounds { device: gib(1), ..bounds }, Bound::Device),
        ] {
            let effective = Effective::of(&bounds);
            assert_eq!((effective.bytes, effective.decided_by), (gib(1), bound));
        }
    }

    #[test]
    fn a_quota_above_the_device_is_lowered_with_a_warning() {
        let bounds = Bounds { device: gib(80), evaluation: Some(gib(200)), ..Bounds::default() };
        let effective = Effective::of(&bounds);
        assert_eq!((effective.bytes, effective.decided_by), (gib(80), Bound::Device));
        assert_snapshot!(effective.warnings.join("\n"), @"the evaluation's quota of 200.00 GiB cannot be had; 80.00 GiB holds: the device's memory");
        let boastful = Effective::of(&Bounds { worker: Some(gib(100)), ..bounds });
        assert_snapshot!(boastful.warnings.join("\n"), @r"
the evaluation's quota of 200.00 GiB cannot be had; 80.00 GiB holds: the device's memory
the worker's ceiling of 100.00 GiB cannot be had; 80.00 GiB holds: the device's memory
");
    }

    proptest! {
        #[test]
        fn a_ceiling_never_promises_what_is_not_there(
            sizes in proptest::array::uniform4(0_u64..100),
            limits in proptest::array::uniform2(proptest::option::of(0_u64..100)),
        ) {
            let [total, free, others, reserve] = sizes.map(ByteCount::gib);
            let [mps, hami] = limits.map(|limit| limit.map(ByteCount::gib));
            let room = DeviceRoom { total, free, others, reserve, mps, hami };
            let bytes = slice_ceiling(&room).bytes.as_u64();
            let taken = others.as_u64() + reserve.as_u64();
            prop_assert!(bytes == 0 || bytes + taken <= free.min(total).as_u64());
            prop_assert!(mps.is_none_or(|limit| bytes <= limit.as_u64()));
            prop_assert!(hami.is_none_or(|limit| bytes == 0 || bytes + others.as_u64() <= limit.as_u64()));
        }

        #[test]
        fn no_bound_is_exceeded_and_one_is_met(
            device: u64,
            optional in proptest::array::uniform5(proptest::option::of(any::<u64>())),
        ) {
            let [worker, evaluation, mps, hami, cgroup] = optional.map(|b| b.map(ByteCount::bytes));
            let device = ByteCount::bytes(device);
            let bounds = Bounds { device, worker, evaluation, mps, hami, cgroup };
            let effective = Effective::of(&bounds);
            let limits = [Some(device), worker, evaluation, mps, hami, cgroup];
            prop_assert_eq!(limits.into_iter().flatten().min(), Some(effective.bytes));
            prop_assert_eq!(effective.warnings.iter().any(|w| w.starts_with("the evaluation")),
                evaluation.is_some_and(|quota| quota > effective.bytes));
        }
    }
}
