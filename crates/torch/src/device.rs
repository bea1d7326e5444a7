//! The devices of this process, and waiting for one.

use std::{ffi::c_int, fmt};

use crate::{
    TorchError,
    ffi::{done, orchestrator_torch_synchronise},
};

/// A device of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// The processors, and the host's memory.
    Cpu,
    /// A CUDA device, by its index among those that this process sees.
    Cuda(u8),
}

impl Device {
    /// The shim's number for the device.
    pub(crate) fn number(self) -> c_int {
        match self {
            Self::Cpu => -1,
            Self::Cuda(index) => c_int::from(index),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// Waits until all work that was given to the device is done, so that an error in it comes up here
/// and not in a later call. Nothing to wait for on the CPU.
pub fn synchronise(device: Device) -> Result<(), TorchError> {
    // SAFETY: the message is valid for its capacity during the call.
    done(|message, capacity| unsafe {
        orchestrator_torch_synchronise(device.number(), message, capacity)
    })
}
