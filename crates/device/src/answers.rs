//! What NVML is asked and may answer. One method is one question, so that a recording of the
//! answers of a real machine stands in for it.
//!
//! Devices are named by UUID. Their index is only a position in NVML's list, which is not CUDA's.

use std::{fmt, time::Duration};

use orchestrator_types::{ByteCount, DeviceId};
use serde::{Deserialize, Serialize};

/// NVML's answer to one question.
pub type Answer<T> = Result<T, NvmlError>;

/// The NVIDIA Management Library.
pub trait Nvml: Send + Sync {
    /// The driver's version.
    fn driver_version(&self) -> Answer<String>;

    /// The newest CUDA that the driver's own library serves. A package for forward compatibility
    /// brings another library, so it may be newer than the driver.
    fn cuda_version(&self) -> Answer<Version>;

    /// How many whole GPUs there are.
    fn gpu_count(&self) -> Answer<u32>;

    /// The GPU at one position of the list.
    fn gpu(&self, index: u32) -> Answer<DeviceId>;

    /// How many MIG instances the GPU can have at most; zero while it is not divided.
    fn mig_slots(&self, gpu: &DeviceId) -> Answer<u32>;

    /// The MIG instance in one of the slots; [`NvmlError::NotFound`] where there is none.
    fn mig(&self, gpu: &DeviceId, slot: u32) -> Answer<DeviceId>;

    /// Where in its GPU a MIG instance lies. Instances with one number for the GPU instance share its
    /// memory.
    fn place(&self, instance: &DeviceId) -> Answer<Place>;

    /// The product's name.
    fn name(&self, device: &DeviceId) -> Answer<String>;

    /// What the device's processors can do: its CUDA compute capability.
    fn capability(&self, device: &DeviceId) -> Answer<Version>;

    /// How full the device is. Of a MIG instance, how full its GPU instance is.
    fn memory(&self, device: &DeviceId) -> Answer<DeviceMemory>;

    /// How busy the device is. Not known of MIG instances.
    fn utilisation(&self, device: &DeviceId) -> Answer<Utilisation>;

    /// Processes that compute on the device, by the pids of the host.
    fn processes(&self, device: &DeviceId) -> Answer<Vec<DeviceProcess>>;

    /// Subscribes to the critical errors (XIDs) of GPUs, all at once; of a MIG instance, to those of
    /// the GPU around it, because NVML tells of no other. At least one device.
    ///
    /// One subscription for all of them, and one thread that waits for it: NVML promises nothing to
    /// a process that waits for several at once.
    fn xids<'a>(&'a self, devices: &[DeviceId]) -> Result<Box<dyn Xids + 'a>, Refused>;
}

/// Critical errors of some GPUs, as the driver reports them.
pub trait Xids {
    /// The next one; `None` if there is none within `limit`. It may return earlier, also at once and
    /// always: whoever calls it again sees to the pause.
    fn next(&mut self, limit: Duration) -> Answer<Option<XidEvent>>;
}

/// A critical error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidEvent {
    /// Whom it concerns, as positions in the list of those that are listened to: all instances of
    /// one GPU, or every device where NVML does not tell which GPU it was.
    pub devices: Vec<usize>,
    /// NVIDIA's number.
    pub number: u64,
}

/// The device for which there is no subscription. Others may have one without it.
#[derive(Debug)]
pub struct Refused {
    /// Its position in the list.
    pub device: usize,
    /// Why.
    pub error: NvmlError,
}

/// A version in two parts, of CUDA or of a compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version(pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The driver's numbers for a MIG instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Of the GPU instance, which has the memory.
    pub gpu_instance: u32,
    /// Of the compute instance within it, which has the processors.
    pub compute_instance: u32,
}

/// How full a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// All of it.
    pub total: ByteCount,
    /// What nobody uses.
    pub free: ByteCount,
    /// What the driver keeps for itself; part of what is not free.
    pub reserved: ByteCount,
}

impl DeviceMemory {
    /// What is not free. NVML's own figure means two things in its two versions: with the driver's
    /// reserve and without.
    pub fn used(&self) -> ByteCount {
        self.total.checked_sub(self.free).unwrap_or_default()
    }
}

/// How busy a device was in the last sample period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Utilisation {
    /// Per cent of the time that a kernel ran.
    pub compute_percent: u32,
    /// Per cent of the time that memory was read or written.
    pub memory_percent: u32,
}

/// A process that computes on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProcess {
    /// Its pid on the host, also when asked inside a container.
    pub pid: u32,
    /// What it uses, where the driver tells.
    pub used: Option<ByteCount>,
}

/// Why NVML gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum NvmlError {
    /// There is no library to ask.
    #[error("libnvidia-ml.so.1 cannot be loaded")]
    Absent(#[source] nvml_wrapper::error::NvmlError),
    /// The library is there, the driver is not.
    #[error("the NVIDIA driver is not loaded")]
    NoDriver,
    /// The driver was replaced under the library.
    #[error("the NVIDIA driver and its library are of different versions")]
    VersionMismatch,
    /// This user or container may not ask.
    #[error("no permission")]
    NoPermission,
    /// This device cannot tell.
    #[error("not supported by the device")]
    NotSupported,
    /// There is no such device.
    #[error("not found")]
    NotFound,
    /// The device fell off the bus or needs a reset.
    #[error("the device is lost")]
    Lost,
    /// Anything else.
    #[error("NVML failed")]
    Other(#[source] nvml_wrapper::error::NvmlError),
}
