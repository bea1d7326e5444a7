//! What is offered of what was found.

use std::fmt::Write as _;

use orchestrator_device::NvmlError;

use super::*;

#[path = "../../../device/tests/machines/mod.rs"]
mod machines;
#[path = "../../../device/tests/recorded/mod.rs"]
mod recorded;

const GPU: &str = "GPU-8f6a1c52-17ab-4c1f-9a3e-0123456789ab";

fn gpu(gib: Option<(u64, u64)>) -> Gpu {
    let bytes = |gib: Option<u64>| gib.map(ByteCount::gib);
    let (total, free) = (gib.map(|(total, _)| total), gib.map(|(_, free)| free));
    let gpu = unlisted(GPU.parse().unwrap());
    Gpu { name: "H200".to_owned(), total: bytes(total), free: bytes(free), ..gpu }
}

fn found(gpus: Vec<Gpu>) -> Found {
    Found { gpus, ..Found::default() }
}

fn without_nvml() -> Found {
    Found { warnings: vec![Condition::NoNvml(NvmlError::NoDriver)], ..Found::default() }
}

fn asked(found: Found, cuda: Result<u32, NoCuda>, visible: Option<&str>) -> Value {
    let variable = |name: &str| visible.filter(|_| name == "CUDA_VISIBLE_DEVICES");
    let memory = |ordinal: u32| {
        let (free, total) = (ByteCount::gib(7), ByteCount::gib(8));
        if ordinal == 0 { Ok(FreeTotal { free, total }) } else { Err("lost".to_owned()) }
    };
    let variable = |name: &str| variable(name).map(str::to_owned);
    answer(found, cuda, &variable, &memory)
}

fn warnings(value: &Value) -> String {
    let warnings = value["warnings"].as_array().unwrap();
    let texts: Vec<&str> = warnings.iter().map(|text| text.as_str().unwrap()).collect();
    texts.join("\n")
}

#[test]
fn why_there_is_no_device_is_told_although_none_is_listed() {
    let nothing = asked(without_nvml(), Err(NoCuda::NoDevice), None);
    assert_eq!(nothing["devices"], json!([]));
    let told = warnings(&nothing);
    assert!(told.starts_with("NVML does not answer, so no GPU is used; "), "{told}");
    assert!(told.contains("\nCUDA shows no device; check the driver"), "{told}");
    let entry = Condition::Invisible { entry: "7".to_owned() };
    let hidden = asked(Found { warnings: vec![entry], ..Found::default() }, Ok(0), Some("7"));
    assert!(warnings(&hidden).starts_with("CUDA_VISIBLE_DEVICES names `7`"), "{hidden}");
}

#[test]
fn without_nvml_cuda_is_asked_for_devices_named_by_uuid() {
    let value = asked(without_nvml(), Ok(1), Some(GPU));
    let device = &value["devices"][0];
    assert_eq!((&device["id"], &device["usable"]), (&json!(GPU), &json!(true)), "{value}");
    assert_eq!(warnings(&value), BY_CUDA);
    assert_eq!(device["total_bytes"], json!(8_u64 << 30));
    assert_eq!(device["ceiling_bytes"], json!((7_u64 << 30) - (256 << 20)));
    let other = format!("{GPU},MIG-1");
    let value = asked(without_nvml(), Ok(2), Some(&other));
    assert_eq!(value["devices"][1]["usable"], json!(false), "{value}");
    assert!(warnings(&value["devices"][1]).contains("is not told: lost; "), "{value}");
}

/// CUDA's own list brings back nothing that was left out because NVML told why.
#[test]
fn what_nvml_leaves_out_for_a_reason_stays_out() {
    let gpu: DeviceId = GPU.parse().unwrap();
    let others = Condition::NotGiven { devices: vec![gpu.clone()] };
    let divided = Condition::MaybeDivided { gpu, source: NvmlError::NoDriver };
    for condition in [others, divided] {
        let found = Found { warnings: vec![condition], ..Found::default() };
        let value = asked(found, Ok(1), Some(GPU));
        assert_eq!(value["devices"], json!([]), "{value}");
        assert_eq!(value["warnings"].as_array().unwrap().len(), 1, "{value}");
    }
}

#[test]
fn without_nvml_and_uuids_what_is_missing_is_told() {
    for visible in [None, Some("0"), Some(""), Some("cpu")] {
        let value = asked(without_nvml(), Ok(1), visible);
        assert_eq!(value["devices"], json!([]), "{visible:?}");
        let told = warnings(&value);
        assert!(told.ends_with("on the host does: CUDA_VISIBLE_DEVICES=GPU-…"), "{told}");
    }
}

#[test]
fn a_device_that_tells_no_memory_stays_listed_with_what_to_do() {
    let value = asked(found(vec![gpu(None)]), Ok(1), None);
    let device = &value["devices"][0];
    assert_eq!((&device["total_bytes"], &device["usable"]), (&Value::Null, &json!(false)));
    assert_eq!(device["ceiling_bytes"], Value::Null);
    assert_eq!(
        warnings(device),
        format!(
            "how much memory it has is not told; with CUDA_VISIBLE_DEVICES={GPU} CUDA itself is \
             asked"
        )
    );
    let value = asked(found(vec![gpu(None)]), Ok(1), Some("GPU-8f6a1c52"));
    assert_eq!(value["devices"][0]["usable"], json!(true), "as it says: {value}");
}

#[test]
fn a_device_half_full_of_others_offers_the_rest_with_a_warning() {
    let value = asked(found(vec![gpu(Some((80, 40)))]), Ok(1), None);
    let device = &value["devices"][0];
    assert_eq!(device["ceiling_bytes"], json!((40_u64 << 30) - (256 << 20)));
    let told = warnings(device);
    assert!(told.starts_with("other processes use 40.00 GiB of the device's 80.00 GiB"), "{told}");
}

/// Everything that a divided machine offers: of each slice the device that its executor is started
/// with, its profile, its bytes and why; then what the machine is told.
fn offered(machine: &machines::Machine, variables: &[(&str, &str)]) -> String {
    let recorded: recorded::Recorded = serde_json::from_value(machine.answers()).unwrap();
    let variable = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let found = orchestrator_device::inventory(Ok(&recorded), &variable);
    let value = answer(found, Ok(1), &variable, &|_| Err("not asked".to_owned()));
    let mut text = String::new();
    for device in value["devices"].as_array().unwrap() {
        let (id, name) = (device["id"].as_str().unwrap(), device["name"].as_str().unwrap());
        let usable = if device["usable"] == json!(true) { "usable" } else { "not usable" };
        let older = device["older_name"].as_str().map(|name| format!(", once {name}"));
        writeln!(text, "{id}{}\n  {name}, {usable}", older.unwrap_or_default()).unwrap();
        writeln!(text, "  {}", device["reason"].as_str().unwrap_or("nothing is offered")).unwrap();
        for warning in device["warnings"].as_array().unwrap() {
            writeln!(text, "  warning: {}", warning.as_str().unwrap()).unwrap();
        }
    }
    writeln!(text, "{}", warnings(&value)).unwrap();
    text
}

#[test]
fn divided_machines_offer_a_slice_for_each_instance() {
    for machine in &machines::MACHINES {
        insta::assert_snapshot!(machine.name, offered(machine, &[]));
    }
}

#[test]
fn what_shares_memory_is_never_offered_more_than_there_is_of_it() {
    let sum = |offers: &[Value]| {
        let bytes = offers.iter().filter_map(|device| device["ceiling_bytes"].as_u64());
        bytes.sum::<u64>()
    };
    let machine = machines::MACHINES.iter().find(|it| it.name.ends_with("shared_memory")).unwrap();
    let recorded: recorded::Recorded = serde_json::from_value(machine.answers()).unwrap();
    let found = orchestrator_device::inventory(Ok(&recorded), &|_| None);
    let free = found.gpus[1].free.unwrap().as_u64();
    let value = answer(found, Ok(1), &|_| None, &|_| Err(String::new()));
    let parts = &value["devices"].as_array().unwrap()[1..3];
    assert!(sum(parts) <= free - RESERVE.as_u64(), "{parts:?}");
}

#[test]
fn limits_of_mps_and_hami_bound_an_instance_too() {
    let machine = &machines::MACHINES[0];
    let mps = offered(machine, &[("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2G")]);
    assert_eq!(mps.matches("2.00 GiB: the MPS limit").count(), 7, "{mps}");
    let hami = offered(machine, &[("CUDA_DEVICE_MEMORY_LIMIT", "3072m")]);
    assert_eq!(hami.matches("3.00 GiB: the HAMi limit").count(), 7, "{hami}");
}

#[test]
fn an_old_driver_is_told_once_and_nothing_is_usable() {
    let machine = machines::MACHINES.iter().find(|it| it.name.ends_with("old_driver")).unwrap();
    let recorded: recorded::Recorded = serde_json::from_value(machine.answers()).unwrap();
    let found = orchestrator_device::inventory(Ok(&recorded), &|_| None);
    // As CUDA behaves then.
    let value = answer(found, Err(NoCuda::NoDevice), &|_| None, &|_| Err(String::new()));
    insta::assert_snapshot!(warnings(&value), @"the NVIDIA driver is too old: 550.54.15 serves CUDA 12.4 at most; this build computes with CUDA 13.0, which needs driver 580 or newer: update the driver of the machine (for a container, of its node)");
    let devices = value["devices"].as_array().unwrap();
    assert_eq!((devices.len(), devices[0]["usable"].clone()), (7, json!(false)));
}

#[test]
fn a_gpu_without_kernels_says_so_first() {
    let unfit = Condition::OldDevice {
        device: GPU.parse().unwrap(),
        found: orchestrator_device::Version(7, 0),
        needed: BUNDLED.capability,
    };
    let old = Gpu { unfit: Some(unfit), ..gpu(Some((32, 32))) };
    let value = asked(found(vec![old]), Ok(1), None);
    let device = &value["devices"][0];
    assert_eq!(device["usable"], json!(false));
    let told = warnings(device);
    assert!(told.starts_with(&format!("{GPU} has compute capability 7.0; ")), "{told}");
}

#[test]
fn an_installation_without_cuda_says_how_to_get_it() {
    let reason = "libtorch_cuda.so: cannot open shared object file".to_owned();
    let value = asked(found(vec![gpu(Some((80, 40)))]), Err(NoCuda::NotInstalled(reason)), None);
    assert_eq!(warnings(&value["devices"][0]), "", "what others use is not what is wrong");
    assert_eq!(value["devices"][0]["usable"], json!(false));
    insta::assert_snapshot!(warnings(&value), @"this installation computes without CUDA, because libtorch's CUDA support does not load: libtorch_cuda.so: cannot open shared object file; install it (`cargo xtask setup --cuda`), or use the worker's image with CUDA");
}

#[test]
fn a_cause_is_told_once() {
    #[derive(Debug, thiserror::Error)]
    #[error("libnvidia-ml.so.1: cannot open shared object file")]
    struct Inner;
    #[derive(Debug, thiserror::Error)]
    #[error("a libloading error occurred: {0}")]
    struct Outer(#[source] Inner);
    let raw = nvml_wrapper::error::NvmlError::LibraryNotFound;
    let condition = Condition::NoNvml(NvmlError::Absent(raw));
    assert_eq!(told(condition).matches("couldn't be found").count(), 1);
    let error = anyhow::Error::from(Outer(Inner));
    assert_eq!(
        chain(&error),
        "a libloading error occurred: libnvidia-ml.so.1: cannot open shared object file"
    );
}
