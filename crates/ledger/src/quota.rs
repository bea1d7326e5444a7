//! From a slice's quota to what the tensor allocator may take of it.
//!
//! Invariant: what the allocator may take, the runtime's own bytes and the margin add up to the
//! quota, so that an allocator that keeps its limit keeps the slice within its quota.
//!
//! Page-locked host buffers are host memory: they belong to the host's account, not to this.

use orchestrator_types::ByteCount;

/// What context, kernels and handles take before anybody measured it.
const OVERHEAD_UNTIL_MEASURED: ByteCount = ByteCount::mib(600);

/// The margin's floor on quotas that can spare it.
const MARGIN_FLOOR: ByteCount = ByteCount::mib(256);

/// A quota's division between the allocator and what it does not know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorLimit {
    /// The whole.
    pub quota: ByteCount,
    /// What the allocator may take from the device.
    pub limit: ByteCount,
    /// Set apart for the device's runtime: context, kernels, handles.
    pub overhead: ByteCount,
    /// Set apart for growth of the overhead: kernels that load late, workspaces of libraries.
    pub margin: ByteCount,
}

/// A quota that leaves nothing for tensors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "never fits: the slice's quota is {quota}, and {overhead} for the device's runtime with a \
     margin of {margin} leave nothing for tensors; {missing} missing before the first tensor; \
     raise the quota"
)]
pub struct QuotaError {
    /// The quota.
    pub quota: ByteCount,
    /// What the runtime takes.
    pub overhead: ByteCount,
    /// The margin.
    pub margin: ByteCount,
    /// Bytes that the quota is too small by.
    pub missing: ByteCount,
}

/// The container or service of a process may not use enough host memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "never fits: {need} of host memory needed, and the cgroup of this process allows {limit}; \
     {missing} missing; raise the container's memory limit, or stage fewer samples"
)]
pub struct BelowCgroup {
    /// What is needed, with what is in use already.
    pub need: ByteCount,
    /// What the cgroup allows.
    pub limit: ByteCount,
    /// Bytes that the limit is too small by.
    pub missing: ByteCount,
}

impl AllocatorLimit {
    /// Divides the quota of a GPU slice. `overhead` is what the runtime was measured to take, 600
    /// MiB until then.
    ///
    /// The margin is 3 % of the quota, at least 256 MiB, but that floor at most a sixteenth of the
    /// quota: a quota of 2 GiB keeps 128 MiB apart, 4 to 8.5 GiB keep 256 MiB, 80 GiB keep 2.4 GiB.
    pub fn derive(quota: ByteCount, overhead: Option<ByteCount>) -> Result<Self, QuotaError> {
        let overhead = overhead.unwrap_or(OVERHEAD_UNTIL_MEASURED);
        let margin = margin(quota);
        let apart = overhead.as_u64().saturating_add(margin.as_u64());
        match quota.as_u64().checked_sub(apart) {
            Some(limit) if limit > 0 => {
                Ok(Self { quota, limit: ByteCount::bytes(limit), overhead, margin })
            }
            _ => Err(QuotaError {
                quota,
                overhead,
                margin,
                missing: ByteCount::bytes((apart - quota.as_u64()).max(1)),
            }),
        }
    }
}

/// Whether a cgroup allows what the process needs of host memory; `None` allows everything.
pub fn cgroup_allows(limit: Option<ByteCount>, need: ByteCount) -> Result<(), BelowCgroup> {
    match limit.and_then(|limit| Some((limit, need.checked_sub(limit)?))) {
        Some((limit, missing)) if missing > ByteCount::ZERO => {
            Err(BelowCgroup { need, limit, missing })
        }
        _ => Ok(()),
    }
}

fn margin(quota: ByteCount) -> ByteCount {
    let (share, floor) = (quota.as_u64() / 100 * 3, quota.as_u64() / 16);
    ByteCount::bytes(share.max(floor.min(MARGIN_FLOOR.as_u64())))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use proptest::prelude::*;

    use super::*;

    const fn mib(n: u64) -> ByteCount {
        ByteCount::mib(n)
    }

    #[test]
    fn the_margin_leaves_small_quotas_usable() {
        let limit = |quota| AllocatorLimit::derive(quota, None).unwrap();
        assert_eq!(limit(mib(2048)).limit, mib(2048 - 600 - 128));
        assert_eq!(limit(mib(4096)).limit, mib(4096 - 600 - 256));
        assert_eq!(limit(mib(8192)).margin, mib(256));
        assert_eq!(limit(ByteCount::bytes(100_000_000_000)).margin.as_u64(), 3_000_000_000);
    }

    #[test]
    fn a_measured_overhead_replaces_the_estimate() {
        let measured = AllocatorLimit::derive(mib(2048), Some(mib(450))).unwrap();
        assert_eq!((measured.overhead, measured.limit), (mib(450), mib(2048 - 450 - 128)));
    }

    #[test]
    fn a_quota_that_the_runtime_uses_up_is_refused() {
        assert_snapshot!(AllocatorLimit::derive(mib(512), None).unwrap_err(), @"never fits: the slice's quota is 512.00 MiB, and 600.00 MiB for the device's runtime with a margin of 32.00 MiB leave nothing for tensors; 120.00 MiB missing before the first tensor; raise the quota");
        let exactly = AllocatorLimit::derive(mib(1600), Some(mib(1500))).unwrap_err();
        assert_eq!(exactly.missing, ByteCount::bytes(1));
    }

    #[test]
    fn a_cgroup_limit_below_the_need_is_refused() {
        assert_snapshot!(cgroup_allows(Some(mib(512)), mib(1200)).unwrap_err(), @"never fits: 1.17 GiB of host memory needed, and the cgroup of this process allows 512.00 MiB; 688.00 MiB missing; raise the container's memory limit, or stage fewer samples");
        assert_eq!(cgroup_allows(Some(mib(512)), mib(512)), Ok(()));
        assert_eq!(cgroup_allows(None, ByteCount::gib(999)), Ok(()));
    }

    proptest! {
        #[test]
        fn the_parts_add_up_to_the_quota(quota: u64, overhead in proptest::option::of(0_u64..1 << 40)) {
            let quota = ByteCount::bytes(quota);
            match AllocatorLimit::derive(quota, overhead.map(ByteCount::bytes)) {
                Ok(AllocatorLimit { limit, overhead, margin, .. }) => {
                    let sum = limit.as_u64() + overhead.as_u64() + margin.as_u64();
                    prop_assert_eq!(sum, quota.as_u64());
                    prop_assert!(limit > ByteCount::ZERO);
                }
                Err(QuotaError { overhead, margin, .. }) => {
                    prop_assert!(overhead.as_u64() + margin.as_u64() >= quota.as_u64());
                }
            }
        }
    }
}
