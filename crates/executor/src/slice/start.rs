//! Taking possession of a device.

use std::sync::{Mutex, atomic::AtomicU64};

use orchestrator_device::Library;
use orchestrator_ledger::Ledger;
use orchestrator_torch::{
    Device, TorchError,
    allocator::{self, DeviceKind},
    cuda::{self, Loaded},
};
use orchestrator_types::{ByteCount, DeviceId};

use super::{FIRST_OVERHEAD, Meter, Runtime, Slice, TermsError};

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
    #[error(transparent)]
    Terms(#[from] TermsError),
}

impl Slice {
    /// Takes the device. For a GPU, `CUDA_VISIBLE_DEVICES` already names it alone, so that it is
    /// device 0 of this process.
    pub(crate) fn start(id: DeviceId, ceiling: ByteCount) -> Result<Self, StartError> {
        let ledger = Ledger::new(ceiling);
        let (device, meter) = match &id {
            DeviceId::Cpu => {
                allocator::count_cpu()?;
                let settings = allocator::default_for(DeviceKind::Cpu);
                let meter = Meter::start(Device::Cpu, id.clone(), &ledger, settings, None, None);
                (Device::Cpu, meter)
            }
            DeviceId::Gpu(_) | DeviceId::Mig(_) => Self::start_gpu(&id, &ledger)?,
        };
        let runtime =
            Runtime { overhead: None, workspaces: ByteCount::ZERO, lease: None, asked: None };
        let (runtime, passes) = (Mutex::new(runtime), AtomicU64::new(0));
        let slice = Self { id, device, ceiling, ledger, meter, runtime, passes };
        slice.runtime().overhead = slice.meter.outside_allocator();
        slice.meter.set_quota(ceiling);
        slice.apply_limit()?;
        Ok(slice)
    }

    fn start_gpu(id: &DeviceId, ledger: &Ledger) -> Result<(Device, Meter), StartError> {
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
        // Without NVML what others use is known only now, with our context in it.
        let baseline = baseline.or_else(|| {
            let memory = allocator::free_and_total(device).ok().flatten()?;
            let used = memory.total.as_u64().saturating_sub(memory.free.as_u64());
            Some(ByteCount::bytes(used.saturating_sub(FIRST_OVERHEAD.as_u64())))
        });
        Ok((device, Meter::start(device, id.clone(), ledger, settings, nvml, baseline)))
    }
}
