//! What was found wrong or unknowable about devices, each with what to do about it.

use std::fmt;

use orchestrator_types::DeviceId;

use crate::{NvmlError, OldDriver, Version};

/// A state of the machine that somebody should know of.
#[derive(Debug, thiserror::Error)]
pub enum Condition {
    /// No GPU can be listed.
    #[error("NVML does not answer, so no GPU is used; {}", remedy(.0))]
    NoNvml(#[source] NvmlError),
    /// NVML answers, and lists nothing.
    #[error(
        "NVML answers and lists no GPU: give one to this machine or container (in Kubernetes, a \
         limit such as `nvidia.com/gpu: 1`)"
    )]
    NoGpu,
    /// No GPU can be used with this driver.
    #[error(transparent)]
    OldDriver(#[from] OldDriver),
    /// libtorch has no kernels for the GPU.
    #[error(
        "{device} has compute capability {found}; this build has kernels from {needed} on, so it \
         is not used"
    )]
    OldDevice {
        /// The device.
        device: DeviceId,
        /// Its capability.
        found: Version,
        /// The least.
        needed: Version,
    },
    /// Whether a GPU is divided is not told.
    #[error(
        "NVML does not tell whether {gpu} is divided into MIG instances, and a divided GPU cannot \
         be used as a whole, so it is not used; give this container an instance by its UUID, or \
         let it ask"
    )]
    MaybeDivided {
        /// The GPU.
        gpu: DeviceId,
        /// Why.
        source: NvmlError,
    },
    /// `NVIDIA_VISIBLE_DEVICES` gives this container other devices.
    #[error(
        "{} left alone: NVIDIA_VISIBLE_DEVICES gives this container others",
        list(.devices)
    )]
    NotGiven {
        /// The devices.
        devices: Vec<DeviceId>,
    },
    /// A MIG instance without all processors of its GPU instance.
    #[error(
        "{device} is a part of a GPU instance, whose memory all parts share; give each of them a \
         quota, or make instances of their own (`nvidia-smi mig -cgi … -C`)"
    )]
    SharedMemory {
        /// The device.
        device: DeviceId,
    },
    /// NVML is there but may not be asked.
    #[error(
        "NVML refuses to tell {query} of {device}: no permission; {}", advice(.device)
    )]
    NoPermission {
        /// What was asked.
        query: Query,
        /// Of which device.
        device: DeviceId,
    },
    /// NVML may not even list the GPUs.
    #[error(
        "NVML refuses to list the GPUs: no permission; give this user or container access to \
         /dev/nvidiactl and the GPUs' device files"
    )]
    NoListing,
    /// Utilisation of a MIG instance.
    #[error(
        "NVML knows no utilisation of the MIG instance {device}; it is left out, and rows per \
         second tell how busy the instance is"
    )]
    NoUtilisation {
        /// The MIG instance.
        device: DeviceId,
    },
    /// A device that must be reset.
    #[error("{device} is lost; it is not used until the machine resets it (see the kernel's log)")]
    Lost {
        /// The device.
        device: DeviceId,
    },
    /// Any other question without an answer.
    #[error("NVML does not tell {query} of {device}")]
    Unanswered {
        /// What was asked.
        query: Query,
        /// Of which device.
        device: DeviceId,
        /// Why.
        source: NvmlError,
    },
    /// A position in NVML's list that it does not describe.
    #[error("NVML does not tell which GPU is number {index}; that GPU is not used")]
    Nameless {
        /// The position.
        index: u32,
        /// Why.
        source: NvmlError,
    },
    /// A GPU in MIG mode without an instance for us.
    #[error(
        "{gpu} is in MIG mode and has no instance that may be used here; create one with \
         `nvidia-smi mig -cgi … -C`, or give one to this container"
    )]
    NoInstance {
        /// The GPU.
        gpu: DeviceId,
    },
    /// `CUDA_VISIBLE_DEVICES` names something that is not there.
    #[error(
        "CUDA_VISIBLE_DEVICES names `{entry}`, which is no device of this machine; like CUDA, only \
         what comes before it is used"
    )]
    Invisible {
        /// As written.
        entry: String,
    },
    /// `CUDA_VISIBLE_DEVICES` names one device twice.
    #[error("CUDA_VISIBLE_DEVICES names `{entry}`, which it already names; it is used once")]
    Twice {
        /// As written.
        entry: String,
    },
    /// `CUDA_VISIBLE_DEVICES` counts, and the order is not certain.
    #[error(
        "CUDA_VISIBLE_DEVICES counts GPUs of different kinds, which CUDA orders by speed and NVML \
         by bus; name them by UUID, or set CUDA_DEVICE_ORDER=PCI_BUS_ID"
    )]
    UncertainOrder,
}

/// What NVML was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// How many MIG instances there are.
    Instances,
    /// The product's name.
    Name,
    /// How full it is.
    Memory,
    /// How busy it is.
    Utilisation,
    /// Which processes use it.
    Processes,
}

impl Condition {
    /// Whether NVML has told nothing of any GPU, so that CUDA may be asked instead.
    pub const fn tells_nothing(&self) -> bool {
        matches!(self, Self::NoNvml(_) | Self::NoListing | Self::NoGpu | Self::Nameless { .. })
    }
}

impl Condition {
    /// The condition behind a question without an answer.
    pub(crate) fn of(query: Query, device: &DeviceId, error: NvmlError) -> Self {
        let device = device.clone();
        match (query, error) {
            (_, NvmlError::NoPermission) => Self::NoPermission { query, device },
            (_, NvmlError::Lost) => Self::Lost { device },
            (Query::Utilisation, NvmlError::NotSupported) if matches!(device, DeviceId::Mig(_)) => {
                Self::NoUtilisation { device }
            }
            (_, source) => Self::Unanswered { query, device, source },
        }
    }
}

/// What to do where NVML does not start.
const fn remedy(error: &NvmlError) -> &'static str {
    match error {
        NvmlError::VersionMismatch => {
            "the driver was updated and the old one is still loaded: restart the machine (for a \
             container, drain and restart its node)"
        }
        NvmlError::NoDriver => {
            "the driver is installed and not loaded: load it (`modprobe nvidia`) and see the \
             kernel's log, or in a container check that the node's driver runs"
        }
        NvmlError::NoPermission => {
            "give this user or container access to /dev/nvidiactl and the GPUs' device files"
        }
        NvmlError::Lost => "a GPU is lost: reset it or restart the machine (see the kernel's log)",
        _ => {
            "where there is one, install its driver; give a container the GPU (in Kubernetes a limit \
             such as `nvidia.com/gpu: 1`) and `utility` in NVIDIA_DRIVER_CAPABILITIES"
        }
    }
}

/// `GPU-…, MIG-… are`, for the beginning of a sentence.
fn list(devices: &[DeviceId]) -> String {
    let names: Vec<String> = devices.iter().map(ToString::to_string).collect();
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(", "))
}

/// What to do when NVML may not be asked about a device.
const fn advice(device: &DeviceId) -> &'static str {
    match device {
        DeviceId::Mig(_) => {
            "what the process that computes measures itself is used instead; with privileges NVML \
             tells"
        }
        _ => {
            "inside a container only the MIG instance that it was given may be asked, not the GPU \
             around it"
        }
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Instances => "the MIG instances",
            Self::Name => "the name",
            Self::Memory => "the memory",
            Self::Utilisation => "the utilisation",
            Self::Processes => "the processes",
        })
    }
}
