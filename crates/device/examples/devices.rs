//! Prints what this machine has, one JSON object a line: `cargo run -p orchestrator-device --example
//! devices`. For a look at a new machine.

#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use std::{env, error::Error};

use orchestrator_device::{
    Found, Gpu, Library, Nvml, driver_pid, environment_limits, host_memory, memory, process_memory,
    survey, utilisation,
};
use serde_json::{Value, json};

fn main() {
    let variable = |name: &str| env::var(name).ok();
    let (library, Found { gpus, warnings, .. }) = survey(&variable);
    if let Some(library) = &library {
        println!("{}", json!({ "driver": told(library.driver_version()) }));
    }
    for (ordinal, gpu) in (0..).zip(&gpus) {
        let limits = environment_limits(&variable, ordinal, &gpu.id);
        println!("{}", json!({ "gpu": described(gpu), "environment": told(limits) }));
        if let Some(library) = &library {
            println!("{}", json!({ "reading": read(library, gpu) }));
        }
    }
    for warning in &warnings {
        println!("{}", json!({ "warning": chain(warning) }));
    }
    println!("{}", json!({ "host": host_memory() }));
}

fn described(gpu: &Gpu) -> Value {
    json!({
        "id": gpu.id,
        "name": gpu.name,
        "total": gpu.total,
        "free": gpu.free,
        "parent": gpu.parent,
        "mig": gpu.mig,
        "warnings": gpu.warnings.iter().map(|warning| chain(warning)).collect::<Vec<_>>(),
    })
}

fn read(library: &Library, gpu: &Gpu) -> Value {
    let memory = memory(library, &gpu.id);
    json!({
        "used": memory.as_ref().ok().map(orchestrator_device::DeviceMemory::used),
        "memory": told(memory),
        "utilisation": told(utilisation(library, &gpu.id)),
        "processes": told(library.processes(&gpu.id)),
        "own": driver_pid().map(|pid| told(process_memory(library, &gpu.id, pid))),
    })
}

/// The answer, or why there is none.
fn told<T: serde::Serialize>(answer: Result<T, impl Error + 'static>) -> Value {
    match answer {
        Ok(answer) => json!(answer),
        Err(error) => json!({ "unknown": chain(&error) }),
    }
}

fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
