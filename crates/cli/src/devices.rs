//! Which devices of this machine a run uses.
//!
//! Invariant: a GPU that could be used is used without a flag, and one that cannot is never passed
//! over in silence: a warning says why the processor computes instead.

use std::{path::Path, str::FromStr};

use anyhow::anyhow;
use orchestrator_types::{ByteCount, DeviceId, ParseDeviceIdError};
use serde::{Deserialize, Serialize};

use crate::{
    executor::{self, NoAnswer},
    exit::{Exit, Failure},
};

/// What exists where a GPU can be.
const TRACES: [&str; 3] = ["/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia"];

/// The value of `--device`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// Every usable GPU, and the processor where there is none.
    Auto,
    /// Every usable GPU, and an error where there is none.
    AnyGpu,
    /// This one.
    Only(DeviceId),
}

impl DeviceChoice {
    /// Whether it asks for a GPU or a part of one.
    pub(crate) const fn is_gpu(&self) -> bool {
        matches!(self, Self::AnyGpu | Self::Only(DeviceId::Gpu(_) | DeviceId::Mig(_)))
    }
}

impl FromStr for DeviceChoice {
    type Err = ParseDeviceIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "gpu" => Ok(Self::AnyGpu),
            device => device.parse().map(Self::Only),
        }
    }
}

/// A GPU or MIG instance, as the executor's program describes it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Found {
    pub(crate) id: DeviceId,
    /// What drivers before R470 called a MIG instance.
    #[serde(default)]
    pub(crate) older_name: Option<String>,
    pub(crate) name: String,
    /// Where somebody tells it.
    pub(crate) total_bytes: Option<ByteCount>,
    pub(crate) free_bytes: Option<ByteCount>,
    /// What a slice may use of it, where that is known.
    pub(crate) ceiling_bytes: Option<ByteCount>,
    /// Why this much.
    pub(crate) reason: Option<String>,
    pub(crate) warnings: Vec<String>,
    pub(crate) usable: bool,
}

/// Everything that the executor's program tells.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Answer {
    /// Of the program.
    pub(crate) build: String,
    pub(crate) libtorch: String,
    pub(crate) cuda: Cuda,
    /// The version of NVIDIA's driver, where told.
    pub(crate) driver: Option<String>,
    /// The newest CUDA that it serves, where told.
    pub(crate) driver_serves_cuda: Option<String>,
    pub(crate) devices: Vec<Found>,
    /// What concerns none of the devices.
    pub(crate) warnings: Vec<String>,
}

/// What libtorch has of CUDA.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Cuda {
    /// The version that this build is made for.
    pub(crate) bundled: String,
    /// Whether it is installed.
    pub(crate) loaded: bool,
}

/// What was chosen, and what the user should know.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    /// None: the processor.
    pub(crate) gpus: Vec<Found>,
    pub(crate) warnings: Vec<String>,
}

/// Asks for the devices if there can be any, and chooses.
pub(crate) fn choose(choice: &DeviceChoice) -> Result<Chosen, Failure> {
    let possible = driver_has_traces();
    match choice {
        DeviceChoice::Only(DeviceId::Cpu) => Ok(Chosen::default()),
        DeviceChoice::Auto if !possible => Ok(Chosen::default()),
        DeviceChoice::Auto => Ok(usable(all())),
        DeviceChoice::AnyGpu => {
            let found = all().map_err(|error| {
                Failure::internal(error.context("failed to look for GPUs".to_owned()))
            })?;
            some_gpu(found)
        }
        DeviceChoice::Only(device) => {
            let found = all().map_err(|error| {
                Failure::internal(error.context(format!("failed to look for {device}")))
            })?;
            named(device, found)
        }
    }
}

/// Whether there can be a GPU.
pub(crate) fn driver_has_traces() -> bool {
    TRACES.iter().any(|path| Path::new(path).exists())
}

fn all() -> anyhow::Result<Answer> {
    executor::ask(&executor::program()?, &["devices"]).map_err(NoAnswer::into_error)
}

/// Every usable GPU; if there is none, the processor, and why.
fn usable(answer: anyhow::Result<Answer>) -> Chosen {
    let chosen = match answer {
        Ok(answer) => gpus(answer),
        Err(error) => Err(format!("the GPU cannot be used: {error:#}")),
    };
    chosen.unwrap_or_else(|why| {
        let warnings = vec![format!("{why}; the processor computes instead")];
        Chosen { gpus: Vec::new(), warnings }
    })
}

/// Every usable GPU, of which there must be one.
fn some_gpu(answer: Answer) -> Result<Chosen, Failure> {
    gpus(answer).map_err(|why| {
        let message = format!("no GPU can be used, and `--device gpu` asks for one: {why}");
        Failure::new(Exit::DoesNotFit, anyhow!(message))
            .advise("`orchestrator doctor` tells what this machine offers".to_owned())
    })
}

/// Every usable GPU; if there is none, why.
fn gpus(answer: Answer) -> Result<Chosen, String> {
    let Answer { devices, warnings: general, .. } = answer;
    let (gpus, others): (Vec<Found>, Vec<Found>) =
        devices.into_iter().partition(|device| device.usable);
    let explained = !general.is_empty();
    let unusable = others.iter().map(|device| refusal(device, &[], explained));
    if gpus.is_empty() {
        let why: Vec<String> = unusable.chain(general).collect();
        return Err(if why.is_empty() {
            "there are traces of a GPU driver, and no GPU".to_owned()
        } else {
            why.join("; ")
        });
    }
    let warnings = gpus.iter().flat_map(told).chain(unusable);
    let warnings = general.iter().cloned().chain(warnings).collect();
    Ok(Chosen { gpus, warnings })
}

/// The one that the user named.
fn named(device: &DeviceId, answer: Answer) -> Result<Chosen, Failure> {
    let Answer { devices, warnings: mut general, .. } = answer;
    let ids: Vec<String> = devices.iter().map(|device| device.id.to_string()).collect();
    let Some(found) = devices.into_iter().find(|found| is(found, device)) else {
        let there = if ids.is_empty() { "none".to_owned() } else { ids.join(", ") };
        let message = format!("there is no device {device}; GPUs of this machine: {there}");
        let message = [vec![message], general].concat().join("; ");
        return Err(Failure::usage(anyhow!(message)));
    };
    if !found.usable {
        return Err(Failure::new(Exit::DoesNotFit, anyhow!(refusal(&found, &general, false))));
    }
    general.extend(told(&found));
    Ok(Chosen { gpus: vec![found], warnings: general })
}

/// Whether the user means this device, perhaps by the name that older drivers gave it.
fn is(found: &Found, named: &DeviceId) -> bool {
    found.id == *named || found.older_name.as_ref().is_some_and(|name| *name == named.to_string())
}

/// That a device cannot be used, and why as far as it is known. `explained`: what is told beside it
/// says why.
fn refusal(device: &Found, general: &[String], explained: bool) -> String {
    let what = format!("{} ({}) cannot be used", device.id, device.name);
    let why: Vec<String> = device.warnings.iter().chain(general).cloned().collect();
    if !why.is_empty() {
        return format!("{what}: {}", why.join("; "));
    }
    match (device.free_bytes, device.total_bytes) {
        (Some(free), Some(total)) if !explained => format!("{what}: {free} of {total} are free"),
        _ => what,
    }
}

fn told(device: &Found) -> Vec<String> {
    device.warnings.iter().map(|warning| format!("{}: {warning}", device.id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::tests::stand_in;

    fn found() -> Answer {
        executor::ask(&stand_in(), &["devices"]).map_err(NoAnswer::into_error).unwrap()
    }

    /// As on a machine where something stands in the way of every device.
    fn hindered(devices: Vec<Found>) -> Answer {
        let warnings = vec!["libtorch's CUDA support does not load".to_owned()];
        Answer { devices, warnings, ..Answer::default() }
    }

    fn message(failure: &Failure) -> (Exit, String) {
        (failure.exit, failure.text())
    }

    #[test]
    fn usable_gpus_are_taken_and_the_others_named() {
        let Chosen { gpus, warnings } = usable(Ok(found()));
        assert_eq!((gpus.len(), gpus[0].name.as_str()), (1, "NVIDIA H200"));
        insta::assert_snapshot!(warnings.join("\n"), @r"
        CUDA_VISIBLE_DEVICES names `7`, which is no device of this machine
        GPU-8f6a1c52-17ab-4c1f-9a3e-0123456789ab: other processes use 0.70 GiB
        GPU-11111111-17ab-4c1f-9a3e-0123456789ab (Tesla K80) cannot be used: compute capability 3.7 is too old
        GPU-22222222-17ab-4c1f-9a3e-0123456789ab (NVIDIA GB10) cannot be used: NVML tells nothing of its memory
        ");
    }

    #[test]
    fn without_a_usable_gpu_the_reason_is_told() {
        let mut none = found();
        none.devices.retain(|device| !device.usable);
        none.devices.truncate(1);
        none.warnings.clear();
        let old = usable(Ok(none.clone()));
        assert!(old.gpus.is_empty());
        insta::assert_snapshot!(old.warnings.join("\n"), @"GPU-11111111-17ab-4c1f-9a3e-0123456789ab (Tesla K80) cannot be used: compute capability 3.7 is too old; the processor computes instead");
        let empty = usable(Ok(hindered(Vec::new())));
        insta::assert_snapshot!(empty.warnings.join("\n"), @"libtorch's CUDA support does not load; the processor computes instead");
        none.devices[0].warnings.clear();
        none.devices[0].total_bytes = None;
        let silent = usable(Ok(hindered(none.devices)));
        insta::assert_snapshot!(silent.warnings.join("\n"), @"GPU-11111111-17ab-4c1f-9a3e-0123456789ab (Tesla K80) cannot be used; libtorch's CUDA support does not load; the processor computes instead");
        let broken = usable(Err(anyhow!("no driver").context("failed to initialise CUDA")));
        insta::assert_snapshot!(broken.warnings.join("\n"), @"the GPU cannot be used: failed to initialise CUDA: no driver; the processor computes instead");
        let nothing = usable(Ok(Answer::default()));
        insta::assert_snapshot!(nothing.warnings.join("\n"), @"there are traces of a GPU driver, and no GPU; the processor computes instead");
    }

    #[test]
    fn what_is_wrong_with_all_devices_is_the_only_reason() {
        let mut none = found();
        none.devices.retain(|device| !device.usable);
        none.devices.truncate(1);
        none.devices[0].warnings.clear();
        none.warnings = vec!["the NVIDIA driver is too old".to_owned()];
        let chosen = usable(Ok(none));
        insta::assert_snapshot!(chosen.warnings.join("\n"), @"GPU-11111111-17ab-4c1f-9a3e-0123456789ab (Tesla K80) cannot be used; the NVIDIA driver is too old; the processor computes instead");
    }

    #[test]
    fn a_mig_instance_may_be_named_as_older_drivers_did() {
        let older = "MIG-GPU-8f6a1c52-17ab-4c1f-9a3e-0123456789ab/7/0";
        let mut answer = found();
        answer.devices[0].older_name = Some(older.to_owned());
        let chosen = named(&older.parse().unwrap(), answer).unwrap();
        assert_eq!(chosen.gpus[0].id, found().devices[0].id, "by its UUID from here on");
    }

    #[test]
    fn a_device_by_name_is_that_one_or_an_error() {
        let device = |number: usize| found().devices.remove(number).id;
        assert_eq!(named(&device(0), found()).unwrap().gpus[0].id, device(0));
        let (exit, text) = message(&named(&device(1), found()).unwrap_err());
        assert_eq!(exit, Exit::DoesNotFit);
        insta::assert_snapshot!(text, @"GPU-11111111-17ab-4c1f-9a3e-0123456789ab (Tesla K80) cannot be used: compute capability 3.7 is too old; CUDA_VISIBLE_DEVICES names `7`, which is no device of this machine");
        let other = DeviceId::Mig("MIG-1".to_owned());
        let (exit, text) = message(&named(&other, hindered(Vec::new())).unwrap_err());
        assert_eq!(exit, Exit::Usage);
        insta::assert_snapshot!(text, @"there is no device MIG-1; GPUs of this machine: none; libtorch's CUDA support does not load");
    }

    #[test]
    fn whoever_asks_for_a_gpu_gets_one_or_an_error() {
        assert_eq!(some_gpu(found()).unwrap().gpus.len(), 1);
        let failure = some_gpu(hindered(Vec::new())).unwrap_err();
        assert_eq!(failure.exit, Exit::DoesNotFit);
        insta::assert_snapshot!(failure.text(), @"no GPU can be used, and `--device gpu` asks for one: libtorch's CUDA support does not load");
    }

    #[test]
    fn devices_are_named_on_the_command_line() {
        assert_eq!("gpu".parse(), Ok(DeviceChoice::AnyGpu));
        assert_eq!("auto".parse(), Ok(DeviceChoice::Auto));
        assert_eq!("cpu".parse(), Ok(DeviceChoice::Only(DeviceId::Cpu)));
        let error = "cuda:0".parse::<DeviceChoice>().unwrap_err();
        insta::assert_snapshot!(error, @"`cuda:0` is not a device; expected `cpu`, `GPU-<uuid>` or `MIG-<uuid>`");
    }
}
