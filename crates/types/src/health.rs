//! What is told of a GPU's health: by the process that asks NVML, to the agent that acts on it.
//!
//! One [`DeviceNews`] is one line of JSON between the two. Fields that are added need defaults.

use serde::{Deserialize, Serialize};

use crate::{ByteCount, DeviceId};

/// What follows from a critical error that the driver reports (an XID).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum XidClass {
    /// The process that computed is at fault or at least finished; the GPU is well.
    Application,
    /// The GPU cannot be trusted.
    Fault,
    /// The GPU cannot be trusted until somebody resets it, or the node.
    NeedsReset,
}

/// A process on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUse {
    /// Its pid on the host, also when asked inside a container.
    pub pid: u32,
    /// What it uses, where the driver tells.
    pub used_bytes: Option<ByteCount>,
}

/// Who uses how much of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceUse {
    /// What is not free, whoever holds it.
    pub used_bytes: ByteCount,
    /// All of it.
    pub total_bytes: ByteCount,
    /// Absent where NVML does not tell.
    pub processes: Option<Vec<ProcessUse>>,
}

/// News of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DeviceNews {
    /// How full it is.
    Reading {
        /// The device.
        device: DeviceId,
        /// Its use.
        #[serde(flatten)]
        usage: DeviceUse,
    },
    /// The driver reports a critical error.
    Xid {
        /// The device, as it was asked for: of a MIG instance the error may be a neighbour's.
        device: DeviceId,
        /// NVIDIA's number.
        xid: u64,
        /// What follows.
        class: XidClass,
        /// The error in words, with NVIDIA's advice.
        told: String,
    },
    /// It fell off the bus or needs a reset.
    Lost {
        /// The device.
        device: DeviceId,
    },
    /// NVML gives no answer within its deadline.
    Timeout {
        /// The device.
        device: DeviceId,
        /// What was asked.
        asked: String,
    },
    /// Errors of the device cannot be heard any more.
    Deaf {
        /// The device.
        device: DeviceId,
        /// Why.
        why: String,
    },
    /// Something of the device cannot be watched here, which says nothing about the device.
    Unwatched {
        /// The device.
        device: DeviceId,
        /// What, and why.
        why: String,
    },
}

impl DeviceNews {
    /// Whose news it is.
    pub const fn device(&self) -> &DeviceId {
        match self {
            Self::Reading { device, .. }
            | Self::Xid { device, .. }
            | Self::Lost { device }
            | Self::Timeout { device, .. }
            | Self::Deaf { device, .. }
            | Self::Unwatched { device, .. } => device,
        }
    }
}
