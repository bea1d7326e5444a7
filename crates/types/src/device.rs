//! Names of compute devices.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A device by its stable name: the CPU, or a GPU or MIG instance by UUID (never by index, because
/// CUDA's and NVML's numbering differ).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum DeviceId {
    /// The processor, or a share of its cores.
    Cpu,
    /// A whole GPU, `GPU-<uuid>`.
    Gpu(String),
    /// A MIG instance, `MIG-<uuid>`.
    Mig(String),
}

/// Text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a device; expected `cpu`, `GPU-<uuid>` or `MIG-<uuid>`")]
pub struct ParseDeviceIdError(String);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Gpu(id) | Self::Mig(id) => f.write_str(id),
        }
    }
}

impl FromStr for DeviceId {
    type Err = ParseDeviceIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "cpu" {
            Ok(Self::Cpu)
        } else if text.len() > 4 && text.starts_with("GPU-") {
            Ok(Self::Gpu(text.to_owned()))
        } else if text.len() > 4 && text.starts_with("MIG-") {
            Ok(Self::Mig(text.to_owned()))
        } else {
            Err(ParseDeviceIdError(text.to_owned()))
        }
    }
}

impl From<DeviceId> for String {
    fn from(device: DeviceId) -> Self {
        device.to_string()
    }
}

impl TryFrom<String> for DeviceId {
    type Error = ParseDeviceIdError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}
