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
    /// What NVIDIA's MPS allows one process: `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`.
    Mps,
    /// What HAMi allows a container: `CUDA_DEVICE_MEMORY_LIMIT`.
    Hami,
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

/// The smallest bound; among equals the first.
fn smallest(bounds: &[(Bound, Option<ByteCount>)]) -> Option<(Bound, ByteCount)> {
    bounds.iter().filter_map(|(bound, limit)| Some((*bound, (*limit)?))).min_by_key(|(_, b)| *b)
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "the device's memory",
            Self::Mps => "the MPS limit CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            Self::Hami => "the HAMi limit CUDA_DEVICE_MEMORY_LIMIT",
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
    }
}
