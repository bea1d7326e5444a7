//! What libtorch's allocators hold, what they may hold, and how they are set.
//!
//! One interface for both devices. The CPU's allocator counts after [`count_cpu`]; before, the
//! functions here fail for [`Device::Cpu`]. CUDA's allocator always counts, but a device that was
//! not used yet has no counters: zeros are given, and a limit needs [`initialise`] first. Ask about
//! CUDA devices only after [`crate::cuda::load`]: libtorch keeps its first answer, and every call
//! here fails after a no.
//!
//! Invariant: a limit of the CPU holds at every allocation, whichever threads ask.

mod environment;
mod settings;
#[cfg(test)]
mod tests;

use orchestrator_types::ByteCount;

pub use environment::environment;
pub use settings::{DeviceKind, apply, default_for};

use crate::{
    Device, TorchError,
    ffi::{
        ABSENT, Counts, LevelCounts, OK, call, done, orchestrator_torch_count_cpu,
        orchestrator_torch_empty_cache, orchestrator_torch_free_and_total,
        orchestrator_torch_initialise, orchestrator_torch_limit, orchestrator_torch_refuse_once,
        orchestrator_torch_reset_peaks, orchestrator_torch_set_limit,
        orchestrator_torch_statistics,
    },
};

/// The shim's number for "no limit".
const NO_LIMIT: u64 = u64::MAX;

/// A number of bytes now, and the highest since the peaks were last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Now.
    pub current: ByteCount,
    /// At most.
    pub peak: ByteCount,
}

impl From<LevelCounts> for Level {
    fn from(counts: LevelCounts) -> Self {
        Self { current: ByteCount::bytes(counts.current), peak: ByteCount::bytes(counts.peak) }
    }
}

/// What a device's allocator holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// In tensors. On the CPU exactly the bytes asked for; on CUDA rounded up to the
    /// allocator's blocks of 512 bytes.
    pub allocated: Level,
    /// Taken from the device, used or cached. On the CPU nothing is cached: as `allocated`.
    pub reserved: Level,
    /// Allocations refused since the process began.
    pub ooms: u64,
    /// Allocations that passed only after the cache was emptied, since the process began. Rising
    /// numbers mean that memory is nearly out. Always 0 on the CPU.
    pub retries: u64,
    /// Free bytes in segments that are in use elsewhere. Blind to expandable segments; always 0
    /// on the CPU.
    pub inactive_split_bytes: ByteCount,
}

/// Bytes that are free, of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeTotal {
    /// Free bytes.
    pub free: ByteCount,
    /// All bytes.
    pub total: ByteCount,
}

/// Replaces libtorch's CPU allocator by one that counts and can refuse. Once done, further calls
/// do nothing. Call it before the first tensor: what was allocated before is never counted.
///
/// Counted is what libtorch asks its allocator for: tensors, and the scratch memory that oneDNN
/// takes through libtorch. What MKL and oneDNN take from the system for themselves is not, nor is
/// memory that is pinned ([`crate::pinned`]) or mapped.
pub fn count_cpu() -> Result<(), TorchError> {
    // SAFETY: the message is valid for its capacity during the call. Blocks of the allocator
    // before are told apart by a mark and go back to it.
    done(|message, capacity| unsafe { orchestrator_torch_count_cpu(message, capacity) })
}

/// What the device's allocator holds, and held at most.
pub fn statistics(device: Device) -> Result<Statistics, TorchError> {
    let mut counts = Counts::default();
    // SAFETY: all pointers are valid during the call.
    done(|message, capacity| unsafe {
        orchestrator_torch_statistics(device.number(), &raw mut counts, message, capacity)
    })?;
    Ok(Statistics {
        allocated: counts.allocated.into(),
        reserved: counts.reserved.into(),
        ooms: counts.ooms,
        retries: counts.retries,
        inactive_split_bytes: ByteCount::bytes(counts.inactive_split_bytes),
    })
}

/// Sets each peak of the device to what is held now. Peaks belong to the device, not to a thread.
pub fn reset_peaks(device: Device) -> Result<(), TorchError> {
    // SAFETY: the message is valid for its capacity during the call.
    done(|message, capacity| unsafe {
        orchestrator_torch_reset_peaks(device.number(), message, capacity)
    })
}

/// Gives cached memory back: every CUDA device's, whichever is named; the CPU caches nothing.
/// Waits for the device; for between phases, not between batches.
pub fn empty_cache(device: Device) -> Result<(), TorchError> {
    // SAFETY: the message is valid for its capacity during the call.
    done(|message, capacity| unsafe {
        orchestrator_torch_empty_cache(device.number(), message, capacity)
    })
}

/// Memory of the device as its driver sees it, of all processes. Makes the device's context if
/// there is none. On the CPU: what the limit leaves, of the limit, and `None` without one.
pub fn free_and_total(device: Device) -> Result<Option<FreeTotal>, TorchError> {
    let (mut free, mut total) = (0, 0);
    let (code, error) = call(|message, capacity| {
        // SAFETY: all pointers are valid during the call.
        unsafe {
            orchestrator_torch_free_and_total(
                device.number(),
                &raw mut free,
                &raw mut total,
                message,
                capacity,
            )
        }
    });
    match code {
        OK => Ok(Some(FreeTotal { free: ByteCount::bytes(free), total: ByteCount::bytes(total) })),
        ABSENT => Ok(None),
        _ => Err(error),
    }
}

/// The most that the allocator may take from the device from now on; `None` lifts the limit. What
/// it holds already stays, also above the limit.
///
/// On the CPU exact, and checked at every allocation. On CUDA it bounds what the allocator
/// reserves, not what lies outside it (context, kernels, other processes); libtorch keeps it as a
/// fraction of the device, so that [`limit`] may read a byte less, and a limit of the whole device
/// is none. An allocation beyond it fails with a text of which
/// [`out_of_memory::classify`](crate::out_of_memory::classify) knows the kind.
pub fn set_limit(device: Device, limit: Option<ByteCount>) -> Result<(), TorchError> {
    let bytes = limit.map_or(NO_LIMIT, ByteCount::as_u64);
    // SAFETY: the message is valid for its capacity during the call.
    done(|message, capacity| unsafe {
        orchestrator_torch_set_limit(device.number(), bytes, message, capacity)
    })
}

/// The limit in force, if there is one.
pub fn limit(device: Device) -> Result<Option<ByteCount>, TorchError> {
    let mut bytes = NO_LIMIT;
    // SAFETY: all pointers are valid during the call.
    done(|message, capacity| unsafe {
        orchestrator_torch_limit(device.number(), &raw mut bytes, message, capacity)
    })?;
    Ok((bytes != NO_LIMIT).then_some(ByteCount::bytes(bytes)))
}

/// Orders one refusal, as another tenant's demand would cause it: of the CPU allocations of at
/// least `at_least` bytes from now on, `skip` pass and the next is refused, once. It is counted
/// and worded as any other. A second order replaces one that is still open. For fault tests.
pub fn refuse_once(skip: u64, at_least: ByteCount) -> Result<(), TorchError> {
    // SAFETY: the message is valid for its capacity during the call.
    done(|message, capacity| unsafe {
        orchestrator_torch_refuse_once(skip, at_least.as_u64(), message, capacity)
    })
}

/// Starts the device up, so that its counters count and a limit can be set. Comes after [`apply`],
/// for settings that libtorch reads once. Nothing to do on the CPU.
pub fn initialise(device: Device) -> Result<(), TorchError> {
    // SAFETY: the message is valid for its capacity during the call.
    done(|message, capacity| unsafe {
        orchestrator_torch_initialise(device.number(), message, capacity)
    })
}
