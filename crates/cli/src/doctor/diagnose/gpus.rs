//! GPUs, what bounds them, and what Kubernetes has to do with them.

use crate::{
    devices::{Answer, Found},
    doctor::{
        facts::Facts,
        finding::{Finding, Level, Role},
    },
};

const TOPIC: &str = "gpu";

/// What each GPU offers, or why it offers nothing.
pub(crate) fn gpus(facts: &Facts) -> Vec<Finding> {
    // Without an answer the executor's own finding says it all.
    let Some(answer) = facts.answer() else { return Vec::new() };
    let Answer { devices, warnings, driver, driver_serves_cuda, .. } = answer;
    if !facts.driver_traces && devices.is_empty() && !facts.wants_gpu() {
        return vec![Finding::ok(TOPIC, "none, and no trace of a driver: the processor computes")];
    }
    let mut findings: Vec<Finding> = driver
        .iter()
        .map(|driver| {
            let serves = driver_serves_cuda.as_ref().map(|cuda| format!(", serves CUDA {cuda}"));
            Finding::ok(TOPIC, format!("driver {driver}{}", serves.unwrap_or_default()))
        })
        .collect();
    findings.extend(devices.iter().flat_map(device));
    let usable = devices.iter().any(|device| device.usable);
    let general = |warning: &String| {
        let finding = Finding::note(TOPIC, warning).split();
        // Where nothing can be used this is why.
        if usable { finding } else { Finding { level: Level::Problem, ..finding } }
    };
    findings.extend(warnings.iter().map(general));
    if facts.wants_gpu() && !usable {
        let named = facts.variable("ORCHESTRATOR_DEVICE").unwrap_or_default();
        let text = format!("ORCHESTRATOR_DEVICE asks for {named}, and no GPU can be used");
        let fix = "see the lines above; `ORCHESTRATOR_DEVICE=auto` takes what there is";
        findings.push(Finding::problem(TOPIC, text, &[Role::Worker]).fix(fix));
    } else if !usable {
        findings.push(Finding::note(TOPIC, "no GPU can be used: the processor computes"));
    }
    findings
}

fn device(device: &Found) -> Vec<Finding> {
    let Found { id, name, warnings, .. } = device;
    let warned = warnings.iter().map(|warning| Finding::note(TOPIC, warning));
    let told = if device.usable {
        let why = device.reason.clone().unwrap_or_default();
        Finding::ok(TOPIC, format!("{id}, {name}, offers {why}"))
    } else {
        Finding::problem(TOPIC, format!("{id}, {name}, cannot be used"), &[])
    };
    std::iter::once(told).chain(warned).collect()
}

/// Variables of those who share GPUs out.
pub(crate) fn sharing(facts: &Facts) -> Vec<Finding> {
    let told = |name: &str, means: &str| {
        facts.variable(name).map(|value| Finding::note(TOPIC, format!("{name}={value} {means}")))
    };
    let slower = "gives each process a part of a GPU's processors: slower, with the same results";
    let shown = "is set: no other device is looked at";
    let none = ["none", "void"]
        .contains(&facts.variable("NVIDIA_VISIBLE_DEVICES").unwrap_or_default())
        && facts.answer().is_some_and(|answer| answer.devices.is_empty());
    let ungiven = "gives this container no GPU (`docker run --gpus …` gives some)";
    let known = [
        told("NVIDIA_VISIBLE_DEVICES", ungiven).filter(|_| none && !facts.in_pod()),
        told("CUDA_VISIBLE_DEVICES", shown),
        told("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "(MPS) bounds the memory of each process"),
        told("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", &format!("(MPS) {slower}")),
        told("CUDA_DEVICE_MEMORY_LIMIT", "(HAMi) bounds the memory of this container"),
        told("CUDA_DEVICE_MEMORY_LIMIT_0", "(HAMi) bounds this container's memory of one device"),
        told("CUDA_DEVICE_SM_LIMIT", &format!("(HAMi) {slower}")),
        told("PYTORCH_ALLOC_CONF", "sets the allocator, before our own choice"),
    ];
    let hidden = facts.variables.get("CUDA_VISIBLE_DEVICES").is_some_and(|it| it.trim().is_empty());
    let hidden = hidden.then(|| {
        let text = "CUDA_VISIBLE_DEVICES is set to nothing, which hides every GPU";
        Finding::note(TOPIC, text).fix("unset it to use them")
    });
    known.into_iter().flatten().chain(hidden).collect()
}

/// A pod gets GPUs from the device plugin, if it asks for them.
pub(crate) fn pod(facts: &Facts) -> Option<Finding> {
    const TOPIC: &str = "kubernetes";
    if !facts.in_pod() {
        return None;
    }
    let some = facts.answer().is_some_and(|answer| !answer.devices.is_empty());
    if some {
        return Some(Finding::ok(TOPIC, "this is a pod, and it was given devices"));
    }
    if facts.driver_traces || facts.variable("ORCHESTRATOR_DEVICE") == Some("cpu") {
        return None;
    }
    let named = match facts.variable("NVIDIA_VISIBLE_DEVICES") {
        Some(value) => format!("NVIDIA_VISIBLE_DEVICES is `{value}`"),
        None => "NVIDIA_VISIBLE_DEVICES is not set".to_owned(),
    };
    let text = format!("this pod has no GPU ({named})");
    let fix = "for one, put `nvidia.com/gpu: 1` or `nvidia.com/mig-<profile>: 1` into the \
               container's resources.limits, once; if the pod then stays pending, the node's \
               device plugin offers none (`kubectl describe node`, Allocatable)";
    let finding = if facts.wants_gpu() {
        Finding::problem(TOPIC, text, &[Role::Worker])
    } else {
        Finding::note(TOPIC, text)
    };
    Some(finding.fix(fix))
}
