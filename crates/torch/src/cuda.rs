//! CUDA support, loaded at run time. The executable links the CPU libraries only, so that it
//! starts on machines without a GPU; where there is one, `libtorch_cuda.so` joins at start.

use crate::{
    TorchError, allocator,
    ffi::{ABSENT, OK, call, orchestrator_torch_cuda_load, orchestrator_torch_device_count},
};

/// What came of loading CUDA support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// CUDA support is in the process, and sees this many devices (possibly none).
    Present {
        /// Number of devices that the process may use.
        devices: u32,
    },
    /// The library, or one that it needs, is not on this machine: a CPU machine.
    Absent {
        /// The dynamic linker's words.
        reason: String,
    },
}

/// Loads CUDA support. Must come before the first question to libtorch about CUDA, whose answer is
/// kept. libtorch reads allocator settings in the environment now, and would end the process over
/// a wrong one: such a one is an error here.
pub fn load() -> Result<Loaded, TorchError> {
    allocator::environment()?;
    let (code, error) = call(|message, capacity| {
        // SAFETY: `message` is valid for `capacity` bytes during the call. Loading runs the
        // library's initialisers; it is PyTorch's own and of the version that we link.
        unsafe { orchestrator_torch_cuda_load(message, capacity) }
    });
    match code {
        OK => Ok(Loaded::Present { devices: device_count()? }),
        ABSENT => Ok(Loaded::Absent { reason: error.0 }),
        _ => Err(error),
    }
}

fn device_count() -> Result<u32, TorchError> {
    let mut count = 0;
    let (code, error) = call(|message, capacity| {
        // SAFETY: all pointers are valid for the duration of the call.
        unsafe { orchestrator_torch_device_count(&raw mut count, message, capacity) }
    });
    if code == OK { Ok(u32::try_from(count).unwrap_or(0)) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_never_fails_and_says_what_is_missing() {
        match load().unwrap() {
            Loaded::Present { .. } => {}
            Loaded::Absent { reason } => assert!(reason.contains(".so"), "{reason}"),
        }
    }
}
