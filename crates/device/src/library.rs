//! NVML as the driver brings it: `libnvidia-ml.so.1`, loaded when it is opened.
//!
//! Handles are looked up by UUID for every question: they are cheap, and none outlives a device
//! that was reset or divided meanwhile.

use std::{path::Path, time::Duration};

use nvml_wrapper::{
    EventSet,
    bitmasks::event::EventTypes,
    enums::{device::UsedGpuMemory, event::XidError},
    error::NvmlError as Raw,
};
use orchestrator_types::{ByteCount, DeviceId};

use crate::{Answer, DeviceMemory, DeviceProcess, Nvml, NvmlError, Utilisation, Xids};

/// NVML's number for an error that it cannot name.
const UNKNOWN_XID: u64 = 999;

/// The library of this machine's driver.
pub struct Library {
    nvml: nvml_wrapper::Nvml,
}

impl Library {
    /// Loads and starts the library.
    pub fn open() -> Answer<Self> {
        Ok(Self { nvml: nvml_wrapper::Nvml::init()? })
    }

    /// As [`open`](Self::open), from a place that the loader does not search.
    pub fn open_at(path: &Path) -> Answer<Self> {
        let nvml = nvml_wrapper::Nvml::builder().lib_path(path.as_os_str()).init()?;
        Ok(Self { nvml })
    }

    fn device(&self, device: &DeviceId) -> Answer<nvml_wrapper::Device<'_>> {
        Ok(self.nvml.device_by_uuid(device.to_string())?)
    }
}

impl Nvml for Library {
    fn driver_version(&self) -> Answer<String> {
        Ok(self.nvml.sys_driver_version()?)
    }

    fn gpu_count(&self) -> Answer<u32> {
        Ok(self.nvml.device_count()?)
    }

    fn gpu(&self, index: u32) -> Answer<DeviceId> {
        named(&self.nvml.device_by_index(index)?)
    }

    fn mig_slots(&self, gpu: &DeviceId) -> Answer<u32> {
        Ok(self.device(gpu)?.mig_device_count()?)
    }

    fn mig(&self, gpu: &DeviceId, slot: u32) -> Answer<DeviceId> {
        named(&self.device(gpu)?.mig_device_by_index(slot)?)
    }

    fn name(&self, device: &DeviceId) -> Answer<String> {
        Ok(self.device(device)?.name()?)
    }

    fn memory(&self, device: &DeviceId) -> Answer<DeviceMemory> {
        let memory = self.device(device)?.memory_info()?;
        Ok(DeviceMemory {
            total: ByteCount::bytes(memory.total),
            free: ByteCount::bytes(memory.free),
            reserved: ByteCount::bytes(memory.reserved),
        })
    }

    fn utilisation(&self, device: &DeviceId) -> Answer<Utilisation> {
        let rates = self.device(device)?.utilization_rates()?;
        Ok(Utilisation { compute_percent: rates.gpu, memory_percent: rates.memory })
    }

    fn processes(&self, device: &DeviceId) -> Answer<Vec<DeviceProcess>> {
        let processes = self.device(device)?.running_compute_processes()?;
        let process = |process: nvml_wrapper::struct_wrappers::device::ProcessInfo| DeviceProcess {
            pid: process.pid,
            used: match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(ByteCount::bytes(bytes)),
                UsedGpuMemory::Unavailable => None,
            },
        };
        Ok(processes.into_iter().map(process).collect())
    }

    fn xids<'a>(&'a self, device: &DeviceId) -> Answer<Box<dyn Xids + 'a>> {
        let gpu = match device {
            DeviceId::Mig(_) => self.device(device)?.mig_parent_device()?,
            DeviceId::Cpu | DeviceId::Gpu(_) => self.device(device)?,
        };
        let events = self.nvml.create_event_set()?;
        let events = gpu.register_events(EventTypes::CRITICAL_XID_ERROR, events);
        Ok(Box::new(Events(events.map_err(|error| error.error)?)))
    }
}

struct Events<'a>(EventSet<'a>);

impl Xids for Events<'_> {
    fn next(&mut self, limit: Duration) -> Answer<Option<u64>> {
        match self.0.wait(u32::try_from(limit.as_millis()).unwrap_or(u32::MAX)) {
            Ok(event) => Ok(event.event_data.map(|xid| match xid {
                XidError::Value(xid) => xid,
                XidError::Unknown => UNKNOWN_XID,
            })),
            Err(Raw::Timeout) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn named(device: &nvml_wrapper::Device<'_>) -> Answer<DeviceId> {
    // Both kinds of UUID parse; another would be a device that CUDA could not be told either.
    device.uuid()?.parse().map_err(|_| NvmlError::Other(Raw::UnexpectedVariant(0)))
}

impl From<Raw> for NvmlError {
    fn from(raw: Raw) -> Self {
        match raw {
            Raw::LibloadingError(_) | Raw::LibraryNotFound => Self::Absent(raw),
            Raw::DriverNotLoaded => Self::NoDriver,
            Raw::LibRmVersionMismatch => Self::VersionMismatch,
            Raw::NoPermission => Self::NoPermission,
            Raw::NotSupported | Raw::FunctionNotFound | Raw::FailedToLoadSymbol(_) => {
                Self::NotSupported
            }
            Raw::NotFound => Self::NotFound,
            Raw::GpuLost | Raw::ResetRequired => Self::Lost,
            other => Self::Other(other),
        }
    }
}
