//! `orchestrator-executor devices`: which GPUs and MIG instances this machine offers.
//!
//! A question for the executor and not for the agent: it alone links NVML, and it alone can say
//! whether libtorch's CUDA support loads.
//!
//! Invariant: whatever keeps a GPU from being used is told, also where no GPU is listed at all.

use orchestrator_device::{BUNDLED, Condition, Found, Gpu, environment_limits, survey};
use orchestrator_engine::libtorch_version;
use orchestrator_ledger::{DeviceRoom, slice_ceiling};
use orchestrator_torch::{
    Device, TorchError,
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

/// Why CUDA shows no device to this process.
#[derive(Debug, thiserror::Error)]
enum NoCuda {
    #[error("CUDA shows no device; check the driver (`nvidia-smi`) and CUDA_VISIBLE_DEVICES")]
    NoDevice,
    #[error(
        "this installation computes without CUDA, because libtorch's CUDA support does not load: \
         {0}; install it (`cargo xtask setup --cuda`), or use the worker's image with CUDA"
    )]
    NotInstalled(String),
    #[error(transparent)]
    Failed(#[from] TorchError),
}

/// A JSON document: what this program is, the driver's version, `devices`, each with id, name, bytes
/// where known, warnings and whether towers can run there; and `warnings`, which concern none of them.
/// `build` is the build of this program.
pub fn devices(build: &str) -> Value {
    let variable = |name: &str| std::env::var(name).ok();
    let (_nvml, found) = survey(&variable);
    let (driver, serves) = (found.driver.clone(), found.serves);
    let shown = shown();
    let loaded = !matches!(shown, Err(NoCuda::NotInstalled(_)));
    let mut document = answer(found, shown, &variable, &ask);
    document["build"] = json!(build);
    document["libtorch"] = json!(libtorch_version());
    document["cuda"] = json!({ "bundled": BUNDLED.cuda.to_string(), "loaded": loaded });
    document["driver"] = json!(driver);
    document["driver_serves_cuda"] = json!(serves.map(|version| version.to_string()));
    document
}

/// How many devices CUDA shows, or why none.
fn shown() -> Result<u32, NoCuda> {
    match cuda::load()? {
        Loaded::Present { devices: 0 } => Err(NoCuda::NoDevice),
        Loaded::Present { devices } => Ok(devices),
        Loaded::Absent { reason } => Err(NoCuda::NotInstalled(reason)),
    }
}

/// Makes the device's context, which counts as used from then on, and ends with this process.
fn ask(ordinal: u32) -> Result<FreeTotal, String> {
    let number = u8::try_from(ordinal).map_err(|error| error.to_string())?;
    let device = Device::Cuda(number);
    let memory = allocator::initialise(device).and_then(|()| allocator::free_and_total(device));
    memory.map_err(|error| error.to_string())?.ok_or_else(|| "CUDA tells nothing".to_owned())
}

fn answer(found: Found, cuda: Result<u32, NoCuda>, variable: Variable<'_>, ask: Ask<'_>) -> Value {
    let Found { mut gpus, warnings, old_driver, .. } = found;
    let count = *cuda.as_ref().unwrap_or(&0);
    let named = named(variable("CUDA_VISIBLE_DEVICES").as_deref(), count);
    // Where NVML tells of GPUs, what was left out was left out for a reason.
    let told_nothing = warnings.iter().any(Condition::tells_nothing);
    let by_cuda = gpus.is_empty() && told_nothing && !named.is_empty();
    let mut warnings: Vec<String> = warnings
        .into_iter()
        .map(|condition| match condition {
            Condition::NoNvml(_) | Condition::NoListing if by_cuda => BY_CUDA.to_owned(),
            condition => told(condition),
        })
        .collect();
    if gpus.is_empty() && told_nothing && count > 0 {
        if named.is_empty() {
            warnings.push(format!(
                "CUDA shows {count} GPUs and nothing tells their UUIDs; name them, as `nvidia-smi \
                 -L` on the host does: CUDA_VISIBLE_DEVICES=GPU-…"
            ));
        }
        gpus = named.iter().cloned().map(unlisted).collect();
    }
    let usable = cuda.is_ok() && !old_driver;
    match cuda {
        // That is what an old driver comes to, and it has been told.
        Err(NoCuda::NoDevice) if old_driver => {}
        Err(why) => warnings.push(why.to_string()),
        Ok(_) => {}
    }
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
        place: None,
        sharers: 0,
        unfit: None,
        warnings: Vec::new(),
        id,
    }
}

fn told(condition: Condition) -> String {
    chain(&condition.into())
}

/// An error with its causes. A library's own may say what the one above it has said.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn offer(gpu: Gpu, named: &[DeviceId], cuda: bool, variable: Variable<'_>, ask: Ask<'_>) -> Value {
    let older_name = gpu.old_name();
    let Gpu { id, name, mut total, mut free, sharers, unfit, warnings, .. } = gpu;
    let cuda = cuda && unfit.is_none();
    let mut warnings: Vec<String> = unfit.into_iter().chain(warnings).map(told).collect();
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
            let others = of_sharers(free, sharers);
            let room = DeviceRoom { total, free, others, reserve: RESERVE, mps, hami };
            let ceiling = slice_ceiling(&room);
            // Of no use where nothing can be computed at all.
            warnings.extend(ceiling.warning.clone().filter(|_| cuda));
            offered = Some(ceiling);
        }
        (_, _, Err(error)) => warnings.push(error.to_string()),
        _ => {}
    }
    let ceiling = offered.as_ref().map(|offered| offered.bytes);
    json!({
        "id": id.to_string(),
        "older_name": older_name,
        "name": name,
        "total_bytes": total.map(ByteCount::as_u64),
        "free_bytes": free.map(ByteCount::as_u64),
        "ceiling_bytes": ceiling.map(ByteCount::as_u64),
        "reason": offered.map(|offered| offered.reason),
        "warnings": warnings,
        "usable": cuda && ceiling.is_some_and(|ceiling| ceiling > ByteCount::ZERO),
    })
}

/// What instances that share the memory are offered of it: as much as this one, each.
fn of_sharers(free: ByteCount, sharers: u32) -> ByteCount {
    let all = u64::from(sharers) + 1;
    ByteCount::bytes(free.as_u64() / all * u64::from(sharers))
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
mod tests;
