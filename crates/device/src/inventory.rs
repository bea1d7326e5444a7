//! Which GPUs and MIG instances may be used, and what can be read of each.
//!
//! Invariant: what is listed can be computed on. A GPU in MIG mode is not: its instances are.

use orchestrator_types::{ByteCount, DeviceId};

use crate::{
    Answer, BUNDLED, Condition, DeviceMemory, Library, Nvml, NvmlError, Place, Query, Utilisation,
    Version,
    visible::{Given, Order, Visible},
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
    /// Where a MIG instance lies in its GPU, where told.
    pub place: Option<Place>,
    /// How many other MIG instances of this machine share its memory.
    pub sharers: u32,
    /// Why nothing can be computed on it, if so.
    pub unfit: Option<Condition>,
    /// What is wrong with it or cannot be known.
    pub warnings: Vec<Condition>,
}

/// What there is.
#[derive(Debug, Default)]
pub struct Found {
    /// In the order of `CUDA_VISIBLE_DEVICES`, else NVML's.
    pub gpus: Vec<Gpu>,
    /// The driver's version, where told.
    pub driver: Option<String>,
    /// The newest CUDA that it serves, where told.
    pub serves: Option<Version>,
    /// Whether that is too old for any GPU; then a warning says so.
    pub old_driver: bool,
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
    pub(crate) instances: Option<Vec<Instance>>,
}

/// A MIG instance of NVML's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) id: DeviceId,
    pub(crate) place: Option<Place>,
}

/// A device that was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) id: DeviceId,
    pub(crate) parent: Option<DeviceId>,
    pub(crate) place: Option<Place>,
    /// Instances beside it on its GPU instance.
    pub(crate) sharers: u32,
}

impl Gpu {
    /// What drivers before R470 called a MIG instance: `MIG-GPU-<uuid>/<GPU instance>/<compute
    /// instance>`.
    pub fn old_name(&self) -> Option<String> {
        old_name(self.parent.as_ref()?, self.place?)
    }

    /// Whether it is a MIG instance with a part of its GPU instance's processors: `MIG 1c.3g.20gb`.
    fn is_part(&self) -> bool {
        let profile = self.name.rsplit_once(" MIG ").map(|(_, profile)| profile);
        let first = profile.and_then(|profile| profile.split('.').next());
        first.is_some_and(|first| first.ends_with('c'))
    }
}

pub(crate) fn old_name(parent: &DeviceId, place: Place) -> Option<String> {
    let Place { gpu_instance, compute_instance } = place;
    matches!(parent, DeviceId::Gpu(_))
        .then(|| format!("MIG-{parent}/{gpu_instance}/{compute_instance}"))
}

/// The GPUs and MIG instances that this process may use, as `CUDA_VISIBLE_DEVICES` and
/// `NVIDIA_VISIBLE_DEVICES` say. `variable` looks up a variable of the environment.
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
    (found.driver, found.serves) = (nvml.driver_version().ok(), nvml.cuda_version().ok());
    let listed = list(nvml, &mut found.warnings);
    let visible = Visible::parse(variable("CUDA_VISIBLE_DEVICES").as_deref());
    let order = Order::parse(variable("CUDA_DEVICE_ORDER").as_deref());
    let chosen = visible.choose(&listed, order, &mut found.warnings);
    let given = Given::parse(variable("NVIDIA_VISIBLE_DEVICES").as_deref());
    for chosen in given.keep(chosen, &mut found.warnings) {
        found.gpus.push(describe(nvml, chosen));
    }
    let old = BUNDLED.judge_driver(found.driver.as_deref(), found.serves);
    if let Some(old) = old.filter(|_| !listed.is_empty()) {
        found.old_driver = true;
        found.warnings.push(old.into());
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
    if count == 0 {
        warnings.push(Condition::NoGpu);
    }
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
) -> Option<Vec<Instance>> {
    let slots = match nvml.mig_slots(gpu) {
        Ok(0) | Err(NvmlError::NotSupported) => return None,
        Ok(slots) => slots,
        Err(error @ NvmlError::Lost) => {
            warnings.push(Condition::of(Query::Instances, gpu, error));
            return Some(Vec::new());
        }
        Err(source) => {
            warnings.push(Condition::MaybeDivided { gpu: gpu.clone(), source });
            return Some(Vec::new());
        }
    };
    let mut found = Vec::new();
    for slot in 0..slots {
        match nvml.mig(gpu, slot) {
            Ok(id) => found.push(Instance { place: nvml.place(&id).ok(), id }),
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

fn describe(nvml: &dyn Nvml, chosen: Chosen) -> Gpu {
    let Chosen { id, parent, place, sharers } = chosen;
    let mut warnings = Vec::new();
    let name = nvml.name(&id).unwrap_or_else(|error| {
        warnings.push(Condition::of(Query::Name, &id, error));
        id.to_string()
    });
    let memory = memory(nvml, &id).map_err(|condition| warnings.push(condition)).ok();
    let mig = matches!(id, DeviceId::Mig(_));
    let mut gpu = Gpu {
        name,
        total: memory.map(|memory| memory.total),
        free: memory.map(|memory| memory.free),
        // MIG begins with Ampere, which has kernels; of an instance it is not told everywhere.
        unfit: if mig { None } else { old_device(nvml, &id) },
        mig,
        parent,
        place,
        sharers,
        warnings,
        id,
    };
    if sharers > 0 || gpu.is_part() {
        gpu.warnings.push(Condition::SharedMemory { device: gpu.id.clone() });
    }
    gpu
}

/// Where the capability is not told, CUDA itself refuses later.
fn old_device(nvml: &dyn Nvml, device: &DeviceId) -> Option<Condition> {
    let found = nvml.capability(device).ok().filter(|found| BUNDLED.lacks_kernels(*found))?;
    Some(Condition::OldDevice { device: device.clone(), found, needed: BUNDLED.capability })
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
