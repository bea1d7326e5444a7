//! Which GPUs and MIG instances may be used, and what can be read of each.
//!
//! Invariant: what is listed can be computed on. A GPU in MIG mode is not: its instances are.

use orchestrator_types::{ByteCount, DeviceId};

use crate::{
    Answer, Condition, DeviceMemory, Library, Nvml, NvmlError, Query, Utilisation,
    visible::{Order, Visible},
};

/// A whole GPU or a MIG instance.
#[derive(Debug)]
pub struct Gpu {
    /// Its UUID.
    pub id: DeviceId,
    /// The product's name; the UUID where it is not told.
    pub name: String,
    /// All of its memory, where told.
    pub total: Option<ByteCount>,
    /// What nobody uses of it, where told.
    pub free: Option<ByteCount>,
    /// The GPU that a MIG instance is part of.
    pub parent: Option<DeviceId>,
    /// Whether it is a MIG instance.
    pub mig: bool,
    /// What is wrong with it or cannot be known.
    pub warnings: Vec<Condition>,
}

/// What there is.
#[derive(Debug, Default)]
pub struct Found {
    /// In the order of `CUDA_VISIBLE_DEVICES`, else NVML's.
    pub gpus: Vec<Gpu>,
    /// What concerns none of them.
    pub warnings: Vec<Condition>,
}

/// A GPU of NVML's list with its instances.
pub(crate) struct Listed {
    /// Its position in NVML's list, which may have gaps where a GPU does not tell its name.
    pub(crate) position: u32,
    pub(crate) id: DeviceId,
    pub(crate) name: Option<String>,
    /// `None` where the GPU is not divided, and can be used as a whole.
    pub(crate) instances: Option<Vec<DeviceId>>,
}

/// The GPUs and MIG instances that this process may use, as `CUDA_VISIBLE_DEVICES` says. `variable`
/// looks up a variable of the environment.
///
/// Without NVML nothing is listed, and why is a warning.
pub fn inventory(nvml: Answer<&dyn Nvml>, variable: &dyn Fn(&str) -> Option<String>) -> Found {
    let mut found = Found::default();
    let nvml = match nvml {
        Ok(nvml) => nvml,
        Err(error) => {
            found.warnings.push(Condition::NoNvml(error));
            return found;
        }
    };
    let listed = list(nvml, &mut found.warnings);
    let visible = Visible::parse(variable("CUDA_VISIBLE_DEVICES").as_deref());
    let order = Order::parse(variable("CUDA_DEVICE_ORDER").as_deref());
    for (id, parent) in visible.choose(&listed, order, &mut found.warnings) {
        found.gpus.push(describe(nvml, id, parent));
    }
    found
}

/// Opens this machine's NVML and lists as [`inventory`] does. The library is for later readings.
pub fn survey(variable: &dyn Fn(&str) -> Option<String>) -> (Option<Library>, Found) {
    match Library::open() {
        Ok(library) => {
            let found = inventory(Ok(&library), variable);
            (Some(library), found)
        }
        Err(error) => (None, inventory(Err(error), variable)),
    }
}

/// All GPUs in NVML's order, with instances.
fn list(nvml: &dyn Nvml, warnings: &mut Vec<Condition>) -> Vec<Listed> {
    let count = match nvml.gpu_count() {
        Ok(count) => count,
        Err(NvmlError::NoPermission) => {
            warnings.push(Condition::NoListing);
            return Vec::new();
        }
        Err(error) => {
            warnings.push(Condition::NoNvml(error));
            return Vec::new();
        }
    };
    let mut listed = Vec::new();
    for position in 0..count {
        match nvml.gpu(position) {
            Ok(id) => {
                let instances = instances(nvml, &id, warnings);
                listed.push(Listed { position, name: nvml.name(&id).ok(), id, instances });
            }
            Err(source) => warnings.push(Condition::Nameless { index: position, source }),
        }
    }
    listed
}

/// The GPU's MIG instances; `None` where it is not divided.
fn instances(
    nvml: &dyn Nvml,
    gpu: &DeviceId,
    warnings: &mut Vec<Condition>,
) -> Option<Vec<DeviceId>> {
    let slots = match nvml.mig_slots(gpu) {
        Ok(0) | Err(NvmlError::NotSupported) => return None,
        Ok(slots) => slots,
        Err(error) => {
            let lost = matches!(error, NvmlError::Lost);
            warnings.push(Condition::of(Query::Instances, gpu, error));
            return lost.then(Vec::new);
        }
    };
    let mut found = Vec::new();
    for slot in 0..slots {
        match nvml.mig(gpu, slot) {
            Ok(instance) => found.push(instance),
            // A slot is empty, or its instance is somebody else's.
            Err(NvmlError::NotFound | NvmlError::NoPermission) => {}
            Err(error) => warnings.push(Condition::of(Query::Instances, gpu, error)),
        }
    }
    if found.is_empty() {
        warnings.push(Condition::NoInstance { gpu: gpu.clone() });
    }
    Some(found)
}

fn describe(nvml: &dyn Nvml, id: DeviceId, parent: Option<DeviceId>) -> Gpu {
    let mut warnings = Vec::new();
    let name = nvml.name(&id).unwrap_or_else(|error| {
        warnings.push(Condition::of(Query::Name, &id, error));
        id.to_string()
    });
    let memory = memory(nvml, &id).map_err(|condition| warnings.push(condition)).ok();
    Gpu {
        name,
        total: memory.map(|memory| memory.total),
        free: memory.map(|memory| memory.free),
        mig: matches!(id, DeviceId::Mig(_)),
        parent,
        warnings,
        id,
    }
}

/// How full a device is.
pub fn memory(nvml: &dyn Nvml, device: &DeviceId) -> Result<DeviceMemory, Condition> {
    nvml.memory(device).map_err(|error| Condition::of(Query::Memory, device, error))
}

/// How busy a device is. [`Condition::NoUtilisation`] for MIG instances.
pub fn utilisation(nvml: &dyn Nvml, device: &DeviceId) -> Result<Utilisation, Condition> {
    nvml.utilisation(device).map_err(|error| Condition::of(Query::Utilisation, device, error))
}

/// What one process uses of a device; `None` where NVML does not list it or not its memory. `pid`
/// is the host's: see [`driver_pid`](crate::driver_pid).
pub fn process_memory(
    nvml: &dyn Nvml,
    device: &DeviceId,
    pid: u32,
) -> Result<Option<ByteCount>, Condition> {
    let processes = nvml.processes(device);
    let processes = processes.map_err(|error| Condition::of(Query::Processes, device, error))?;
    Ok(processes.into_iter().find(|process| process.pid == pid).and_then(|process| process.used))
}
