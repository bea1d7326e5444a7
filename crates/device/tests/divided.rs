//! What is found on divided A100, H100 and H200 GPUs. What is offered of it, machine by machine, is a
//! test of the executor's `devices`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod machines;
mod recorded;

use std::collections::BTreeSet;

use machines::MACHINES;
use orchestrator_device::{Found, inventory, utilisation};
use orchestrator_types::{ByteCount, DeviceId};
use recorded::Recorded;

fn look(name: &str, variables: &[(&str, &str)]) -> (Recorded, Found) {
    let machine = MACHINES.iter().find(|machine| machine.name == name).unwrap();
    let recorded: Recorded = serde_json::from_value(machine.answers()).unwrap();
    let variable = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let found = inventory(Ok(&recorded), &variable);
    (recorded, found)
}

#[test]
fn no_machine_offers_a_divided_gpu_itself_or_a_device_twice() {
    for machine in &MACHINES {
        let (recorded, found) = look(machine.name, &[]);
        let ids: BTreeSet<&DeviceId> = found.gpus.iter().map(|gpu| &gpu.id).collect();
        assert_eq!(ids.len(), found.gpus.len(), "{}", machine.name);
        for gpu in found.gpus.iter().filter(|gpu| gpu.mig) {
            let parent = gpu.parent.as_ref().unwrap();
            assert!(!ids.contains(parent), "{}: {parent} is divided", machine.name);
            assert!(gpu.total.unwrap() > ByteCount::ZERO, "{}", machine.name);
            utilisation(&recorded, &gpu.id).unwrap_err();
        }
    }
}

#[test]
fn what_a_container_is_given_by_uuid_is_all_it_offers() {
    let second = "MIG-3b7e9a10-52c4-5d6e-9f80-000000000001";
    for variable in ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"] {
        for name in [second, "MIG-GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000000/8/0"] {
            let (_, found) = look("h100_80_single", &[(variable, name)]);
            let ids: Vec<String> = found.gpus.iter().map(|gpu| gpu.id.to_string()).collect();
            assert_eq!(ids, [second], "{variable}={name}");
        }
    }
    // CDI gives a device and leaves this word behind.
    let (_, found) = look("h200_141_in_a_container", &[("NVIDIA_VISIBLE_DEVICES", "void")]);
    assert_eq!(found.gpus.len(), 1);
}

#[test]
fn parts_of_one_gpu_instance_know_how_many_share_its_memory() {
    let sharers = |name| {
        let (_, found) = look(name, &[]);
        found.gpus.iter().map(|gpu| gpu.sharers).collect::<Vec<_>>()
    };
    assert_eq!(sharers("a100_40_mixed_with_shared_memory"), [0, 1, 1, 0]);
    assert_eq!(sharers("h100_80_single"), [0; 7]);
    // The other part is another container's, and not seen; that there is one is told.
    assert_eq!(sharers("a100_40_part_in_a_container"), [0]);
}
