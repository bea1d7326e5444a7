//! Taking possession of a device.

use orchestrator_device::Library;
use orchestrator_ledger::Ledger;
use orchestrator_torch::{
    Device, TorchError,
    allocator::{self, DeviceKind},
    cuda::{self, Loaded},
};
use orchestrator_types::{ByteCount, DeviceId};

use super::{Meter, Runtime, Slice};
use std::sync::{Mutex, atomic::AtomicU64};

/// Why a slice cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// CUDA support is not on this machine.
    #[error(
        "{device} needs libtorch's CUDA support, which does not load: {reason}; install it \
         (`cargo xtask setup --cuda`), or use `--device cpu`"
    )]
    NoCuda {
        /// The device.
        device: DeviceId,
        /// The dynamic linker's words.
        reason: String,
    },
    /// CUDA support is there and shows no device.
    #[error(
        "{device} is not visible to CUDA: check the driver (`nvidia-smi`) and CUDA_VISIBLE_DEVICES"
    )]
    NotVisible {
        /// The device.
        device: DeviceId,
    },
    /// libtorch failed.
    #[error(transparent)]
    Torch(#[from] TorchError),
    /// The quota leaves nothing to compute with.
    #[error("{0}")]
    Terms(String),
}

impl Slice {
    /// Takes the device. For a GPU, `CUDA_VISIBLE_DEVICES` already names it alone, so that it is
    /// device 0 of this process.
    pub(crate) fn start(id: DeviceId, ceiling: ByteCount) -> Result<Self, StartError> {
        let (device, meter) = match &id {
            DeviceId::Cpu => {
                allocator::count_cpu()?;
                let settings = allocator::default_for(DeviceKind::Cpu);
                (Device::Cpu, Meter::start(Device::Cpu, id.clone(), settings, None, None))
            }
            DeviceId::Gpu(_) | DeviceId::Mig(_) => Self::start_gpu(&id)?,
        };
        let runtime = Runtime { overhead: None, lease: None, asked: None };
        let ledger = Ledger::new(ceiling);
        let (runtime, passes) = (Mutex::new(runtime), AtomicU64::new(0));
        let slice = Self { id, device, ceiling, ledger, meter, runtime, passes };
        slice.runtime().overhead = slice.meter.outside_allocator();
        slice.meter.set_quota(ceiling);
        slice.apply_limit().map_err(|error| StartError::Terms(error.to_string()))?;
        Ok(slice)
    }

    fn start_gpu(id: &DeviceId) -> Result<(Device, Meter), StartError> {
        // Read before CUDA makes its context: everything that is in use now belongs to others.
        let nvml = Library::open().ok();
        let baseline = nvml.as_ref().and_then(|nvml| {
            orchestrator_device::memory(nvml, id).ok().map(|memory| memory.used())
        });
        if baseline.is_none() {
            tracing::warn!(device = %id, "NVML tells nothing of the device: what others use is unknown");
        }
        let device = Device::Cuda(0);
        match cuda::load()? {
            Loaded::Absent { reason } => {
                return Err(StartError::NoCuda { device: id.clone(), reason });
            }
            Loaded::Present { devices: 0 } => {
                return Err(StartError::NotVisible { device: id.clone() });
            }
            Loaded::Present { .. } => {}
        }
        allocator::count_cpu()?;
        let shared = matches!(id, DeviceId::Mig(_))
            || std::env::var_os("CUDA_DEVICE_MEMORY_LIMIT").is_some()
            || std::env::var_os("CUDA_DEVICE_MEMORY_LIMIT_0").is_some();
        let kind = if shared { DeviceKind::SharedOrMig } else { DeviceKind::WholeGpu };
        // A variable wins over our choice: whoever sets it knows the machine.
        let settings = allocator::environment()?.unwrap_or_else(|| allocator::default_for(kind));
        allocator::apply(&settings)?;
        allocator::initialise(device)?;
        Ok((device, Meter::start(device, id.clone(), settings, nvml, baseline)))
    }
}
