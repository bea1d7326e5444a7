//! `orchestrator-executor devices`: which GPUs and MIG instances this machine offers.
//!
//! A question for the executor and not for the agent: it alone links NVML, and it alone can say
//! whether libtorch's CUDA support loads.

use orchestrator_device::{Gpu, environment_limits, survey};
use orchestrator_ledger::{DeviceRoom, slice_ceiling};
use orchestrator_torch::cuda::{self, Loaded};
use orchestrator_types::ByteCount;
use serde_json::{Value, json};

/// Never offered: the driver's own needs grow a little under load.
const RESERVE: ByteCount = ByteCount::mib(256);

/// A JSON list of devices: id, name, bytes, warnings, and whether towers can run there.
pub fn devices() -> Value {
    let variable = |name: &str| std::env::var(name).ok();
    let (_nvml, found) = survey(&variable);
    let absent = match cuda::load() {
        Ok(Loaded::Present { devices: 0 }) => Some("CUDA shows no device".to_owned()),
        Ok(Loaded::Present { .. }) => None,
        Ok(Loaded::Absent { reason }) => {
            Some(format!("libtorch's CUDA support does not load: {reason}"))
        }
        Err(error) => Some(error.to_string()),
    };
    let general: Vec<String> = found.warnings.iter().map(ToString::to_string).collect();
    found.gpus.iter().map(|gpu| offer(gpu, &general, absent.as_deref())).collect()
}

fn offer(gpu: &Gpu, general: &[String], absent: Option<&str>) -> Value {
    let mut warnings: Vec<String> = gpu.warnings.iter().map(ToString::to_string).collect();
    warnings.extend(general.iter().cloned());
    warnings.extend(absent.map(str::to_owned));
    let variable = |name: &str| std::env::var(name).ok();
    // The executor of the device will see it alone, as number 0.
    let limits = environment_limits(&variable, 0, &gpu.id);
    let mut ceiling = ByteCount::ZERO;
    match (gpu.total, gpu.free, &limits) {
        (Some(total), Some(free), Ok(limits)) => {
            let (mps, hami) = (limits.mps, limits.hami);
            let room =
                DeviceRoom { total, free, others: ByteCount::ZERO, reserve: RESERVE, mps, hami };
            let offered = slice_ceiling(&room);
            ceiling = offered.bytes;
            warnings.extend(offered.warning);
        }
        (_, _, Err(error)) => warnings.push(error.to_string()),
        _ => warnings.push("how much memory it has is not told; state a quota".to_owned()),
    }
    let usable = absent.is_none() && ceiling > ByteCount::ZERO;
    json!({
        "id": gpu.id.to_string(),
        "name": gpu.name,
        "total_bytes": gpu.total.map(ByteCount::as_u64),
        "free_bytes": gpu.free.map(ByteCount::as_u64),
        "ceiling_bytes": ceiling.as_u64(),
        "warnings": warnings,
        "usable": usable,
    })
}
