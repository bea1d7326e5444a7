//! What is listed and told of recorded machines.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod recorded;

use std::{error::Error, fmt::Write as _};

use insta::assert_snapshot;
use nvml_wrapper::error::NvmlError as Raw;
use orchestrator_device::{
    Condition, Found, Nvml, NvmlError, inventory, memory, process_memory, utilisation,
};
use orchestrator_types::{ByteCount, DeviceId};
use recorded::Recorded;

/// Everything that was found, as lines.
fn shown(found: &Found) -> String {
    let mut text = String::new();
    for gpu in &found.gpus {
        let told = |bytes: Option<ByteCount>| bytes.map_or("?".to_owned(), |b| b.to_string());
        let kind = if gpu.mig { "instance" } else { "whole" };
        let (free, total) = (told(gpu.free), told(gpu.total));
        writeln!(text, "{kind} {} {}: {free} of {total} free", gpu.id, gpu.name).unwrap();
        if let Some(parent) = &gpu.parent {
            writeln!(text, "  of {parent}").unwrap();
        }
        for warning in &gpu.warnings {
            writeln!(text, "  {}", chain(warning)).unwrap();
        }
    }
    for warning in &found.warnings {
        writeln!(text, "{}", chain(warning)).unwrap();
    }
    text
}

fn chain(error: &dyn Error) -> String {
    let cause = error.source().map(|cause| format!(": {}", chain(cause)));
    format!("{error}{}", cause.unwrap_or_default())
}

fn listed(recording: &str, visible: Option<&str>) -> String {
    let recorded = Recorded::load(recording);
    let variable = |name: &str| match name {
        "CUDA_VISIBLE_DEVICES" => visible.map(str::to_owned),
        _ => None,
    };
    shown(&inventory(Ok(&recorded), &variable))
}

fn device(text: &str) -> DeviceId {
    text.parse().unwrap()
}

const FULL: &str = "GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000002";
const INSTANCE: &str = "MIG-3b7e9a10-52c4-5d6e-9f80-000000000002";
const CONTAINED: &str = "MIG-3b7e9a10-52c4-5d6e-9f80-000000000004";
const AROUND_IT: &str = "GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000004";

#[test]
fn whole_gpus_are_listed_with_what_others_leave() {
    assert_snapshot!(listed("h200", None), @r"
whole GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000001 NVIDIA H200: 139.78 GiB of 140.40 GiB free
whole GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000002 NVIDIA H200: 69.58 GiB of 140.40 GiB free
");
}

#[test]
fn empty_slots_between_instances_are_skipped() {
    assert_snapshot!(listed("a100-divided", None), @r"
instance MIG-3b7e9a10-52c4-5d6e-9f80-000000000001 NVIDIA A100-SXM4-80GB MIG 3g.40gb: 39.21 GiB of 39.25 GiB free
  of GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000003
instance MIG-3b7e9a10-52c4-5d6e-9f80-000000000002 NVIDIA A100-SXM4-80GB MIG 2g.20gb: 11.72 GiB of 19.50 GiB free
  of GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000003
instance MIG-3b7e9a10-52c4-5d6e-9f80-000000000003 NVIDIA A100-SXM4-80GB MIG 1g.10gb: 9.49 GiB of 9.50 GiB free
  of GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000003
");
}

#[test]
fn a_container_sees_its_instance_although_the_gpu_around_it_is_closed() {
    assert_snapshot!(listed("h100-container", None), @r"
instance MIG-3b7e9a10-52c4-5d6e-9f80-000000000004 NVIDIA H100 80GB HBM3 MIG 1g.10gb: 9.74 GiB of 9.75 GiB free
  of GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000004
");
}

#[test]
fn what_cannot_be_computed_on_is_told_and_not_listed_as_usable() {
    assert_snapshot!(listed("trouble", None), @r"
whole GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000007 NVIDIA GB10: ? of ? free
  NVML does not tell the memory of GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000007: not supported by the device
GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000005 is in MIG mode and has no instance that may be used here; create one with `nvidia-smi mig -cgi … -C`, or give one to this container
GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000006 is lost; it is not used until the machine resets it (see the kernel's log)
NVML does not tell which GPU is number 3; that GPU is not used: NVML failed: an internal driver error occurred
");
}

#[test]
fn nvml_without_permission_is_told() {
    assert_snapshot!(listed("forbidden", None), @"NVML refuses to list the GPUs: no permission; give this user or container access to /dev/nvidiactl and the GPUs' device files");
}

#[test]
fn no_nvml_is_told_with_its_cause() {
    for (error, cause) in [
        (NvmlError::from(Raw::LibraryNotFound), "libnvidia-ml.so.1 cannot be loaded"),
        (NvmlError::from(Raw::DriverNotLoaded), "the NVIDIA driver is not loaded"),
        (NvmlError::from(Raw::LibRmVersionMismatch), "are of different versions"),
    ] {
        let found = inventory(Err(error), &|_| None);
        assert!(found.gpus.is_empty());
        let told = shown(&found);
        assert!(told.starts_with("NVML does not answer, so no GPU is used; "), "{told}");
        assert!(told.contains(cause), "{told}");
    }
    assert_snapshot!(shown(&inventory(Err(Raw::LibraryNotFound.into()), &|_| None)), @"NVML does not answer, so no GPU is used; where there is one, install its driver; give a container the GPU (in Kubernetes a limit such as `nvidia.com/gpu: 1`) and `utility` in NVIDIA_DRIVER_CAPABILITIES: libnvidia-ml.so.1 cannot be loaded: a shared library couldn't be found or loaded");
}

#[test]
fn what_to_do_depends_on_what_keeps_nvml_from_answering() {
    let told = |raw: Raw| shown(&inventory(Err(raw.into()), &|_| None));
    let mismatch = told(Raw::LibRmVersionMismatch);
    assert!(mismatch.contains("restart the machine"), "{mismatch}");
    let unloaded = told(Raw::DriverNotLoaded);
    assert!(unloaded.contains("modprobe nvidia"), "{unloaded}");
    let forbidden = told(Raw::NoPermission);
    assert!(forbidden.contains("/dev/nvidiactl"), "{forbidden}");
}

#[test]
fn nvml_without_a_gpu_is_told() {
    assert_snapshot!(listed("empty", None), @"NVML answers and lists no GPU: give one to this machine or container (in Kubernetes, a limit such as `nvidia.com/gpu: 1`)");
}

#[test]
fn a_gpu_that_may_be_divided_is_not_offered_as_a_whole() {
    assert_snapshot!(listed("silent", None), @"NVML does not tell whether GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000008 is divided into MIG instances, and a divided GPU cannot be used as a whole, so it is not used; give this container an instance by its UUID, or let it ask: no permission");
}

#[test]
fn an_old_gpu_is_listed_with_what_keeps_it_from_being_used() {
    let recorded = Recorded::load("old");
    let found = inventory(Ok(&recorded), &|_| None);
    let unfit = found.gpus[0].unfit.as_ref().unwrap();
    assert_snapshot!(unfit, @"GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000009 has compute capability 7.0; this build has kernels from 7.5 on, so it is not used");
    assert!(found.gpus[1].unfit.is_none(), "Turing is not too old");
}

#[test]
fn only_visible_devices_are_listed() {
    assert_snapshot!(listed("a100-divided", Some(INSTANCE)), @r"
instance MIG-3b7e9a10-52c4-5d6e-9f80-000000000002 NVIDIA A100-SXM4-80GB MIG 2g.20gb: 11.72 GiB of 19.50 GiB free
  of GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000003
");
    assert_snapshot!(listed("h200", Some("1,4,0")), @r"
whole GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000002 NVIDIA H200: 69.58 GiB of 140.40 GiB free
CUDA_VISIBLE_DEVICES names `4`, which is no device of this machine; like CUDA, only what comes before it is used
");
    assert_eq!(listed("h200", Some("")), "");
}

#[test]
fn what_is_used_is_what_is_not_free() {
    let memory = memory(&Recorded::load("h200"), &device(FULL)).unwrap();
    // The driver's own reserve included.
    assert_eq!(memory.used(), ByteCount::mib(143_771 - 71_250));
}

#[test]
fn an_instance_has_no_utilisation_and_a_whole_gpu_has() {
    let whole = utilisation(&Recorded::load("h200"), &device(FULL)).unwrap();
    assert_eq!(whole.compute_percent, 97);
    let condition = utilisation(&Recorded::load("a100-divided"), &device(INSTANCE)).unwrap_err();
    assert!(matches!(condition, Condition::NoUtilisation { .. }));
    assert_snapshot!(condition, @"NVML knows no utilisation of the MIG instance MIG-3b7e9a10-52c4-5d6e-9f80-000000000002; it is left out, and rows per second tell how busy the instance is");
}

#[test]
fn asking_the_gpu_around_an_instance_is_refused_with_advice() {
    let container = Recorded::load("h100-container");
    let condition = memory(&container, &device(AROUND_IT)).unwrap_err();
    assert!(matches!(condition, Condition::NoPermission { .. }));
    assert_snapshot!(condition, @"NVML refuses to tell the memory of GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000004: no permission; inside a container only the MIG instance that it was given may be asked, not the GPU around it");
    let condition = process_memory(&container, &device(CONTAINED), 1).unwrap_err();
    assert_snapshot!(condition, @"NVML refuses to tell the processes of MIG-3b7e9a10-52c4-5d6e-9f80-000000000004: no permission; what the process that computes measures itself is used instead; with privileges NVML tells");
}

#[test]
fn a_process_is_found_by_the_hosts_pid_only() {
    let h200 = Recorded::load("h200");
    let used = |pid| process_memory(&h200, &device(FULL), pid).unwrap();
    assert_eq!(used(2_114_907), Some(ByteCount::mib(71_888)));
    // The same process by its pid inside a container.
    assert_eq!(used(7), None);
    // Listed, but the driver does not tell how much.
    let divided = Recorded::load("a100-divided");
    assert_eq!(process_memory(&divided, &device(INSTANCE), 33121).unwrap(), None);
}

#[test]
fn a_device_that_is_gone_is_told() {
    let h200 = Recorded::load("h200");
    let condition = memory(&h200, &device("GPU-dead")).unwrap_err();
    assert_eq!(chain(&condition), "NVML does not tell the memory of GPU-dead: not found");
    assert_eq!(h200.driver_version().unwrap(), "580.159.03");
}
