//! NVML as the driver brings it: `libnvidia-ml.so.1`, loaded when it is opened.
//!
//! Handles are looked up by UUID for every question: they are cheap, and none outlives a device
//! that was reset or divided meanwhile.

use std::{path::Path, time::Duration};

use nvml_wrapper::{
    EventSet,
    bitmasks::event::EventTypes,
    enums::{device::UsedGpuMemory, event::XidError},
    error::{NvmlError as Raw, nvml_try},
};
use orchestrator_types::{ByteCount, DeviceId};

use crate::{
    Answer, DeviceMemory, DeviceProcess, Nvml, NvmlError, Place, Refused, Utilisation, Version,
    XidEvent, Xids,
};

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

    /// The device, or the GPU around it.
    fn gpu_of(&self, device: &DeviceId) -> Answer<nvml_wrapper::Device<'_>> {
        Ok(match device {
            DeviceId::Mig(_) => self.device(device)?.mig_parent_device()?,
            DeviceId::Cpu | DeviceId::Gpu(_) => self.device(device)?,
        })
    }
}

impl Nvml for Library {
    fn driver_version(&self) -> Answer<String> {
        Ok(self.nvml.sys_driver_version()?)
    }

    fn cuda_version(&self) -> Answer<Version> {
        let told = self.nvml.sys_cuda_driver_version()?;
        let part = |number: i32| u32::try_from(number).unwrap_or_default();
        Ok(Version(
            part(nvml_wrapper::cuda_driver_version_major(told)),
            part(nvml_wrapper::cuda_driver_version_minor(told)),
        ))
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

    fn place(&self, instance: &DeviceId) -> Answer<Place> {
        let (instance, lib) = (self.device(instance)?, self.nvml.lib());
        let number = |ask: Option<unsafe extern "C" fn(_, *mut u32) -> _>| {
            let ask = ask.ok_or(NvmlError::NotSupported)?;
            let mut number = 0;
            // SAFETY: the handle comes from this library, which stays open during the call, and
            // `number` is the one integer that the function writes.
            #[expect(unsafe_code, reason = "the wrapper has no safe form of these two questions")]
            nvml_try(unsafe { ask(instance.handle(), &raw mut number) })?;
            Ok::<u32, NvmlError>(number)
        };
        Ok(Place {
            gpu_instance: number(lib.nvmlDeviceGetGpuInstanceId.as_ref().ok().copied())?,
            compute_instance: number(lib.nvmlDeviceGetComputeInstanceId.as_ref().ok().copied())?,
        })
    }

    fn capability(&self, device: &DeviceId) -> Answer<Version> {
        let told = self.device(device)?.cuda_compute_capability()?;
        let part = |number: i32| u32::try_from(number).unwrap_or_default();
        Ok(Version(part(told.major), part(told.minor)))
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

    fn xids<'a>(&'a self, devices: &[DeviceId]) -> Result<Box<dyn Xids + 'a>, Refused> {
        let refused = |device, error: Raw| Refused { device, error: error.into() };
        let mut set = self.nvml.create_event_set().map_err(|error| refused(0, error))?;
        let mut gpus: Vec<(String, Vec<usize>)> = Vec::new();
        for (index, device) in devices.iter().enumerate() {
            let gpu = self.gpu_of(device).map_err(|error| Refused { device: index, error })?;
            let uuid = gpu.uuid().map_err(|error| refused(index, error))?;
            // A GPU is registered once, for all of its instances.
            if let Some((_, instances)) = gpus.iter_mut().find(|(known, _)| *known == uuid) {
                instances.push(index);
                continue;
            }
            set = gpu
                .register_events(EventTypes::CRITICAL_XID_ERROR, set)
                .map_err(|error| refused(index, error.error))?;
            gpus.push((uuid, vec![index]));
        }
        Ok(Box::new(Events { set, gpus }))
    }
}

/// NVML's set of events, and the devices of each GPU in it.
struct Events<'a> {
    set: EventSet<'a>,
    gpus: Vec<(String, Vec<usize>)>,
}

impl Events<'_> {
    /// The devices of `gpu`. One that cannot be told may be any, and a lone one need not be told.
    fn devices(&self, gpu: &nvml_wrapper::Device<'_>) -> Vec<usize> {
        let uuid = if self.gpus.len() == 1 { None } else { gpu.uuid().ok() };
        let known = self.gpus.iter().find(|(known, _)| uuid.as_ref() == Some(known));
        match known {
            Some((_, devices)) => devices.clone(),
            None => self.gpus.iter().flat_map(|(_, devices)| devices).copied().collect(),
        }
    }
}

impl Xids for Events<'_> {
    fn next(&mut self, limit: Duration) -> Answer<Option<XidEvent>> {
        match self.set.wait(u32::try_from(limit.as_millis()).unwrap_or(u32::MAX)) {
            Ok(event) => Ok(event.event_data.map(|xid| {
                let devices = self.devices(&event.device);
                let number = match xid {
                    XidError::Value(xid) => xid,
                    XidError::Unknown => UNKNOWN_XID,
                };
                XidEvent { devices, number }
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
