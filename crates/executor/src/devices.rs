//! `orchestrator-executor devices`: which GPUs and MIG instances this machine offers.
//!
//! A question for the executor and not for the agent: it alone links NVML, and it alone can say
//! whether libtorch's CUDA support loads.
//!
//! Invariant: whatever keeps a GPU from being used is told, also where no GPU is listed at all.

use orchestrator_device::{Condition, Found, Gpu, environment_limits, survey};
use orchestrator_ledger::{DeviceRoom, slice_ceiling};
use orchestrator_torch::{
    Device,
    allocator::{self, FreeTotal},
    cuda::{self, Loaded},
};
use orchestrator_types::{ByteCount, DeviceId};
use serde_json::{Value, json};

/// Never offered: the driver's own needs grow a little under load.
const RESERVE: ByteCount = ByteCount::mib(256);

/// Said where NVML lists nothing and the GPUs are used all the same.
const BY_CUDA: &str = "NVML does not answer, so CUDA itself was asked for the GPUs that \
    CUDA_VISIBLE_DEVICES names; what other processes use of them is not watched";

/// Looks up a variable of the environment.
type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Asks CUDA for the memory of one of its devices, by number.
type Ask<'a> = &'a dyn Fn(u32) -> Result<FreeTotal, String>;

/// A JSON document: `devices`, each with id, name, bytes where known, warnings and whether towers
/// can run there; and `warnings`, which concern none of them.
pub fn devices() -> Value {
    let variable = |name: &str| std::env::var(name).ok();
    let (_nvml, found) = survey(&variable);
    answer(found, shown(), &variable, &ask)
}

/// How many devices CUDA shows, or why none.
fn shown() -> Result<u32, String> {
    match cuda::load() {
        Ok(Loaded::Present { devices: 0 }) => Err("CUDA shows no device; check the driver \
            (`nvidia-smi`) and CUDA_VISIBLE_DEVICES"
            .to_owned()),
        Ok(Loaded::Present { devices }) => Ok(devices),
        Ok(Loaded::Absent { reason }) => Err(format!(
            "libtorch's CUDA support does not load: {reason}; install it (`cargo xtask setup \
             --cuda`)"
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// Makes the device's context, which counts as used from then on, and ends with this process.
fn ask(ordinal: u32) -> Result<FreeTotal, String> {
    let number = u8::try_from(ordinal).map_err(|error| error.to_string())?;
    let device = Device::Cuda(number);
    let memory = allocator::initialise(device).and_then(|()| allocator::free_and_total(device));
    memory.map_err(|error| error.to_string())?.ok_or_else(|| "CUDA tells nothing".to_owned())
}

fn answer(found: Found, cuda: Result<u32, String>, variable: Variable<'_>, ask: Ask<'_>) -> Value {
    let Found { mut gpus, warnings } = found;
    let count = *cuda.as_ref().unwrap_or(&0);
    let named = named(variable("CUDA_VISIBLE_DEVICES").as_deref(), count);
    let by_cuda = gpus.is_empty() && !named.is_empty();
    let mut warnings: Vec<String> = warnings
        .into_iter()
        .map(|condition| match condition {
            Condition::NoNvml(_) | Condition::NoListing if by_cuda => BY_CUDA.to_owned(),
            condition => told(condition),
        })
        .collect();
    if gpus.is_empty() && count > 0 {
        if named.is_empty() {
            warnings.push(format!(
                "CUDA shows {count} GPUs and nothing tells their UUIDs; name them, as `nvidia-smi \
                 -L` on the host does: CUDA_VISIBLE_DEVICES=GPU-…"
            ));
        }
        gpus = named.iter().cloned().map(unlisted).collect();
    }
    let usable = cuda.is_ok();
    warnings.extend(cuda.err());
    let devices: Vec<Value> =
        gpus.into_iter().map(|gpu| offer(gpu, &named, usable, variable, ask)).collect();
    json!({ "devices": devices, "warnings": warnings })
}

/// The UUIDs of CUDA's devices, in its order, where the variable that chose them is a list of such.
fn named(visible: Option<&str>, count: u32) -> Vec<DeviceId> {
    let entries = visible.into_iter().flat_map(|text| text.split(',')).map(str::trim);
    let device = |entry: &str| entry.parse().ok().filter(|device| *device != DeviceId::Cpu);
    let named: Option<Vec<DeviceId>> = entries.take(count as usize).map(device).collect();
    named.filter(|named| named.len() == count as usize).unwrap_or_default()
}

/// A device of which CUDA knows and NVML does not.
fn unlisted(id: DeviceId) -> Gpu {
    Gpu {
        name: "not listed by NVML".to_owned(),
        total: None,
        free: None,
        parent: None,
        mig: matches!(id, DeviceId::Mig(_)),
        warnings: Vec::new(),
        id,
    }
}

fn told(condition: Condition) -> String {
    format!("{:#}", anyhow::Error::from(condition))
}

fn offer(gpu: Gpu, named: &[DeviceId], cuda: bool, variable: Variable<'_>, ask: Ask<'_>) -> Value {
    let Gpu { id, name, mut total, mut free, warnings, .. } = gpu;
    let mut warnings: Vec<String> = warnings.into_iter().map(told).collect();
    if total.is_none() || free.is_none() {
        match measured(&id, named, ask) {
            Ok(memory) => (total, free) = (Some(memory.total), Some(memory.free)),
            // Without CUDA nothing else is of use.
            Err(why) => warnings.extend(cuda.then_some(why)),
        }
    }
    // The executor of the device will see it alone, as number 0.
    let limits = environment_limits(variable, 0, &id);
    let mut offered = None;
    match (total, free, &limits) {
        (Some(total), Some(free), Ok(limits)) => {
            let (mps, hami) = (limits.mps, limits.hami);
            let room =
                DeviceRoom { total, free, others: ByteCount::ZERO, reserve: RESERVE, mps, hami };
            let ceiling = slice_ceiling(&room);
            warnings.extend(ceiling.warning.clone());
            offered = Some(ceiling);
        }
        (_, _, Err(error)) => warnings.push(error.to_string()),
        _ => {}
    }
    let ceiling = offered.as_ref().map(|offered| offered.bytes);
    json!({
        "id": id.to_string(),
        "name": name,
        "total_bytes": total.map(ByteCount::as_u64),
        "free_bytes": free.map(ByteCount::as_u64),
        "ceiling_bytes": ceiling.map(ByteCount::as_u64),
        "reason": offered.map(|offered| offered.reason),
        "warnings": warnings,
        "usable": cuda && ceiling.is_some_and(|ceiling| ceiling > ByteCount::ZERO),
    })
}

/// What CUDA itself tells of the device's memory, or what to do so that it can be asked.
fn measured(id: &DeviceId, named: &[DeviceId], ask: Ask<'_>) -> Result<FreeTotal, String> {
    // The variable may name a device by the beginning of its UUID.
    let ordinal =
        (0..).zip(named).find(|(_, named)| id.to_string().starts_with(&named.to_string()));
    let Some((ordinal, _)) = ordinal else {
        return Err(format!(
            "how much memory it has is not told; with CUDA_VISIBLE_DEVICES={id} CUDA itself is asked"
        ));
    };
    ask(ordinal).map_err(|error| {
        format!("how much memory it has is not told: {error}; see the kernel's log for the GPU")
    })
}

#[cfg(test)]
mod tests {
    use orchestrator_device::NvmlError;

    use super::*;

    const GPU: &str = "GPU-8f6a1c52-17ab-4c1f-9a3e-0123456789ab";

    fn gpu(gib: Option<(u64, u64)>) -> Gpu {
        let bytes = |gib: Option<u64>| gib.map(ByteCount::gib);
        let (total, free) = (gib.map(|(total, _)| total), gib.map(|(_, free)| free));
        let gpu = unlisted(GPU.parse().unwrap());
        Gpu { name: "H200".to_owned(), total: bytes(total), free: bytes(free), ..gpu }
    }

    fn found(gpus: Vec<Gpu>) -> Found {
        Found { gpus, warnings: Vec::new() }
    }

    fn without_nvml() -> Found {
        Found { gpus: Vec::new(), warnings: vec![Condition::NoNvml(NvmlError::NoDriver)] }
    }

    fn asked(found: Found, cuda: Result<u32, &str>, visible: Option<&str>) -> Value {
        let variable = |name: &str| visible.filter(|_| name == "CUDA_VISIBLE_DEVICES");
        let memory = |ordinal: u32| {
            let (free, total) = (ByteCount::gib(7), ByteCount::gib(8));
            if ordinal == 0 { Ok(FreeTotal { free, total }) } else { Err("lost".to_owned()) }
        };
        let variable = |name: &str| variable(name).map(str::to_owned);
        answer(found, cuda.map_err(str::to_owned), &variable, &memory)
    }

    fn warnings(value: &Value) -> String {
        let warnings = value["warnings"].as_array().unwrap();
        let texts: Vec<&str> = warnings.iter().map(|text| text.as_str().unwrap()).collect();
        texts.join("\n")
    }

    #[test]
    fn why_there_is_no_device_is_told_although_none_is_listed() {
        let nothing = asked(without_nvml(), Err("CUDA shows no device"), None);
        assert_eq!(nothing["devices"], json!([]));
        let told = warnings(&nothing);
        assert!(told.starts_with("NVML does not answer, so no GPU is used; "), "{told}");
        assert!(told.ends_with("\nCUDA shows no device"), "{told}");
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
        assert!(
            told.starts_with("other processes use 40.00 GiB of the device's 80.00 GiB"),
            "{told}"
        );
    }
}
