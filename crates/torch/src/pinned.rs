//! The host memory that libtorch pins for copies to and from CUDA devices, and keeps.

use crate::{
    TorchError,
    allocator::Level,
    ffi::{
        LevelCounts, done, orchestrator_torch_pinned_empty, orchestrator_torch_pinned_statistics,
    },
};

/// What the cache of pinned memory holds. Blocks are rounded up to powers of two and stay until
/// [`empty`]. They count as the process's memory towards a container's limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// In use.
    pub active: Level,
    /// Taken from the system, used or cached.
    pub allocated: Level,
}

/// What the cache holds; zeros without CUDA support, which pins nothing.
pub fn statistics() -> Result<Statistics, TorchError> {
    let (mut active, mut allocated) = (LevelCounts::default(), LevelCounts::default());
    // SAFETY: all pointers are valid during the call.
    done(|message, capacity| unsafe {
        orchestrator_torch_pinned_statistics(&raw mut active, &raw mut allocated, message, capacity)
    })?;
    Ok(Statistics { active: active.into(), allocated: allocated.into() })
}

/// Gives unused pinned memory back to the system.
pub fn empty() -> Result<(), TorchError> {
    // SAFETY: the message is valid for its capacity during the call.
    done(|message, capacity| unsafe { orchestrator_torch_pinned_empty(message, capacity) })
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_is_pinned_where_nothing_was_copied() {
        // First, as libtorch keeps its first answer about CUDA.
        crate::cuda::load().unwrap();
        super::empty().unwrap();
        assert_eq!(super::statistics().unwrap(), super::Statistics::default());
    }
}
