//! NVML's answers from a file. The recordings have the shape of what A100, H100 and H200 machines
//! answer, in the cases that the documentation and the reports of others describe.

use std::{collections::BTreeMap, fs, path::Path};

use nvml_wrapper::error::NvmlError as Raw;
use orchestrator_device::{
    Answer, DeviceMemory, DeviceProcess, Nvml, NvmlError, Place, Refused, Utilisation, Version,
    Xids,
};
use orchestrator_types::DeviceId;
use serde::Deserialize;

/// One machine's answers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recorded {
    driver: Told<String>,
    /// Not told by recordings of a driver's version alone.
    cuda: Option<Told<Version>>,
    gpus: Told<Vec<Told<DeviceId>>>,
    devices: BTreeMap<String, Device>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Device {
    name: Told<String>,
    capability: Option<Told<Version>>,
    place: Option<Told<Place>>,
    memory: Told<DeviceMemory>,
    utilisation: Told<Utilisation>,
    processes: Told<Vec<DeviceProcess>>,
    /// By slot; absent for MIG instances, which have none.
    mig: Option<Told<Vec<Told<DeviceId>>>>,
}

/// An answer, or the name of NVML's error: `{"error": "not_found"}`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Told<T> {
    No { error: Kind },
    Yes(T),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    NoPermission,
    NotSupported,
    NotFound,
    GpuIsLost,
    Unknown,
}

impl<T: Clone> Told<T> {
    fn answer(&self) -> Answer<T> {
        Ok(self.look()?.clone())
    }
}

impl<T> Told<T> {
    fn look(&self) -> Answer<&T> {
        match self {
            Self::Yes(answer) => Ok(answer),
            Self::No { error } => Err(NvmlError::from(match error {
                Kind::NoPermission => Raw::NoPermission,
                Kind::NotSupported => Raw::NotSupported,
                Kind::NotFound => Raw::NotFound,
                Kind::GpuIsLost => Raw::GpuLost,
                Kind::Unknown => Raw::Unknown,
            })),
        }
    }
}

impl Recorded {
    /// The recording `tests/recordings/<name>.json`.
    #[allow(dead_code, reason = "not every test that includes this reads files")]
    pub(crate) fn load(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
        let text = fs::read_to_string(folder.join(name).with_extension("json")).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn device(&self, device: &DeviceId) -> Answer<&Device> {
        self.devices.get(&device.to_string()).ok_or(NvmlError::NotFound)
    }
}

impl Nvml for Recorded {
    fn driver_version(&self) -> Answer<String> {
        self.driver.answer()
    }

    fn cuda_version(&self) -> Answer<Version> {
        self.cuda.as_ref().ok_or(NvmlError::NotSupported)?.answer()
    }

    fn place(&self, instance: &DeviceId) -> Answer<Place> {
        self.device(instance)?.place.as_ref().ok_or(NvmlError::NotSupported)?.answer()
    }

    fn capability(&self, device: &DeviceId) -> Answer<Version> {
        self.device(device)?.capability.as_ref().ok_or(NvmlError::NotSupported)?.answer()
    }

    fn gpu_count(&self) -> Answer<u32> {
        Ok(u32::try_from(self.gpus.look()?.len()).unwrap())
    }

    fn gpu(&self, index: u32) -> Answer<DeviceId> {
        self.gpus.look()?.get(index as usize).ok_or(NvmlError::NotFound)?.answer()
    }

    fn mig_slots(&self, gpu: &DeviceId) -> Answer<u32> {
        match &self.device(gpu)?.mig {
            Some(slots) => Ok(u32::try_from(slots.look()?.len()).unwrap()),
            None => Err(NvmlError::NotSupported),
        }
    }

    fn mig(&self, gpu: &DeviceId, slot: u32) -> Answer<DeviceId> {
        let slots = self.device(gpu)?.mig.as_ref().ok_or(NvmlError::NotSupported)?.look()?;
        slots.get(slot as usize).ok_or(NvmlError::NotFound)?.answer()
    }

    fn name(&self, device: &DeviceId) -> Answer<String> {
        self.device(device)?.name.answer()
    }

    fn memory(&self, device: &DeviceId) -> Answer<DeviceMemory> {
        self.device(device)?.memory.answer()
    }

    fn utilisation(&self, device: &DeviceId) -> Answer<Utilisation> {
        self.device(device)?.utilisation.answer()
    }

    fn processes(&self, device: &DeviceId) -> Answer<Vec<DeviceProcess>> {
        self.device(device)?.processes.answer()
    }

    /// No recording holds errors.
    fn xids<'a>(&'a self, _: &[DeviceId]) -> Result<Box<dyn Xids + 'a>, Refused> {
        Err(Refused { device: 0, error: NvmlError::NotSupported })
    }
}
