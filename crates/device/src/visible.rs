//! `CUDA_VISIBLE_DEVICES` as CUDA reads it, applied to NVML's list.
//!
//! Invariant: a device is chosen at most once, and none that the variable hides.

use orchestrator_types::DeviceId;

use crate::{
    Condition,
    inventory::{Chosen, Instance, Listed, old_name},
};

/// Which devices a process may use.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Visible {
    /// The variable is not set.
    All,
    /// These, in this order: positions or UUIDs, as written.
    These(Vec<String>),
}

/// How positions in the variable are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// As NVML counts.
    ByBus,
    /// CUDA's own: fastest first.
    BySpeed,
}

impl Order {
    pub(crate) fn parse(variable: Option<&str>) -> Self {
        if variable == Some("PCI_BUS_ID") { Self::ByBus } else { Self::BySpeed }
    }
}

impl Visible {
    pub(crate) fn parse(variable: Option<&str>) -> Self {
        match variable {
            None => Self::All,
            Some(text) if text.trim().is_empty() => Self::These(Vec::new()),
            Some(text) => Self::These(text.split(',').map(|one| one.trim().to_owned()).collect()),
        }
    }

    /// The devices chosen of the list.
    pub(crate) fn choose(
        &self,
        listed: &[Listed],
        order: Order,
        warnings: &mut Vec<Condition>,
    ) -> Vec<Chosen> {
        let Self::These(entries) = self else {
            return listed.iter().flat_map(usable).collect();
        };
        let mut chosen = Vec::new();
        for entry in entries {
            let Some(device) = find(entry, listed) else {
                // CUDA's own words for "none": a position that no device has.
                if entry != "-1" && entry != "NoDevFiles" {
                    warnings.push(Condition::Invisible { entry: entry.clone() });
                }
                break;
            };
            if chosen.contains(&device) {
                warnings.push(Condition::Twice { entry: entry.clone() });
            } else {
                chosen.push(device);
            }
        }
        let counts = entries.iter().any(|entry| entry.parse::<u32>().is_ok());
        if counts && order == Order::BySpeed && !alike(listed) {
            warnings.push(Condition::UncertainOrder);
        }
        chosen
    }
}

/// What `NVIDIA_VISIBLE_DEVICES` gives a container. It is a request to the container's runtime, which
/// shows no other device; but a privileged container sees all of its node's.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// Whatever is seen. `all`, and also what names no device by UUID: positions are the host's, and
    /// `void` or `none` is what a container finds whose devices were given in another way (CDI).
    AllSeen,
    /// These UUIDs.
    These(Vec<DeviceId>),
}

impl Given {
    pub(crate) fn parse(variable: Option<&str>) -> Self {
        let entries = variable.unwrap_or_default().split(',').map(str::trim);
        let entries = entries.filter(|entry| !entry.is_empty());
        let uuid = |entry: &str| entry.parse().ok().filter(|device| *device != DeviceId::Cpu);
        match entries.map(uuid).collect::<Option<Vec<_>>>() {
            Some(devices) if !devices.is_empty() => Self::These(devices),
            _ => Self::AllSeen,
        }
    }

    /// What of it may be used: a device that is given itself or with its GPU.
    pub(crate) fn keep(&self, chosen: Vec<Chosen>, warnings: &mut Vec<Condition>) -> Vec<Chosen> {
        let Self::These(given) = self else { return chosen };
        let names = |one: &Chosen| {
            let old = one.parent.as_ref().zip(one.place);
            let old = old.and_then(|(parent, place)| old_name(parent, place));
            given.iter().any(|given| {
                *given == one.id
                    || Some(given) == one.parent.as_ref()
                    || old.as_ref().is_some_and(|old| *old == given.to_string())
            })
        };
        let (kept, others): (Vec<_>, Vec<_>) = chosen.into_iter().partition(names);
        if !others.is_empty() {
            let devices = others.into_iter().map(|one| one.id).collect();
            warnings.push(Condition::NotGiven { devices });
        }
        kept
    }
}

/// What of a GPU can be computed on.
fn usable(gpu: &Listed) -> Vec<Chosen> {
    let Some(instances) = &gpu.instances else {
        return vec![Chosen { id: gpu.id.clone(), parent: None, place: None, sharers: 0 }];
    };
    let chosen = |one: &Instance| {
        let beside = |other: &&Instance| {
            let same = |place| other.place.is_some_and(|it| it.gpu_instance == place);
            other.id != one.id && one.place.is_some_and(|place| same(place.gpu_instance))
        };
        let sharers = instances.iter().filter(beside).count();
        Chosen {
            id: one.id.clone(),
            parent: Some(gpu.id.clone()),
            place: one.place,
            sharers: u32::try_from(sharers).unwrap_or(u32::MAX),
        }
    };
    instances.iter().map(chosen).collect()
}

/// The device behind an entry: a position, a UUID cut anywhere that is still unique, or a MIG
/// instance's name of drivers before R470.
fn find(entry: &str, listed: &[Listed]) -> Option<Chosen> {
    if let Ok(position) = entry.parse::<u32>() {
        // CUDA shows one instance of a divided GPU that is named as a whole: its first.
        let gpu = listed.iter().find(|gpu| gpu.position == position)?;
        return usable(gpu).into_iter().next();
    }
    if !entry.starts_with("GPU-") && !entry.starts_with("MIG-") {
        return None;
    }
    if let Some(gpu) = unique(listed, |gpu| named(&gpu.id, entry)) {
        return usable(gpu).into_iter().next();
    }
    let all: Vec<Chosen> = listed.iter().flat_map(usable).collect();
    let is_old = |one: &Chosen| {
        one.parent.as_ref().zip(one.place).and_then(|(parent, place)| old_name(parent, place))
            == Some(entry.to_owned())
    };
    unique(&all, |one| named(&one.id, entry) || is_old(one)).cloned()
}

/// Whether the entry is the device's UUID or its beginning.
fn named(id: &DeviceId, entry: &str) -> bool {
    id.to_string().starts_with(entry)
}

fn unique<T>(all: &[T], matches: impl Fn(&T) -> bool) -> Option<&T> {
    let mut matching = all.iter().filter(|one| matches(one));
    matching.next().filter(|_| matching.next().is_none())
}

/// Whether all GPUs are of one product, so that no order by speed can differ.
fn alike(listed: &[Listed]) -> bool {
    listed.windows(2).all(|pair| pair[0].name.is_some() && pair[0].name == pair[1].name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place;

    fn gpu(position: u32, id: &str, name: &str, instances: Option<&[&str]>) -> Listed {
        let instance = |(number, id): (u32, &&str)| Instance {
            id: id.parse().unwrap(),
            place: Some(Place { gpu_instance: 7 + number, compute_instance: 0 }),
        };
        let ids = |ids: &[&str]| (0..).zip(ids).map(instance).collect();
        Listed {
            position,
            id: id.parse().unwrap(),
            name: Some(name.to_owned()),
            instances: instances.map(ids),
        }
    }

    fn machine() -> Vec<Listed> {
        vec![
            gpu(0, "GPU-aa11", "H200", None),
            gpu(1, "GPU-aa22", "H200", None),
            gpu(2, "GPU-bb33", "H200", Some(&["MIG-1111", "MIG-2222"])),
        ]
    }

    fn choose_of(
        listed: &[Listed],
        variable: Option<&str>,
        order: Order,
    ) -> (Vec<String>, Vec<String>) {
        let mut warnings = Vec::new();
        let chosen = Visible::parse(variable).choose(listed, order, &mut warnings);
        let ids = chosen.into_iter().map(|one| one.id.to_string()).collect();
        (ids, warnings.iter().map(ToString::to_string).collect())
    }

    fn choose(variable: Option<&str>) -> (Vec<String>, Vec<String>) {
        choose_of(&machine(), variable, Order::BySpeed)
    }

    #[test]
    fn unset_means_all_and_empty_means_none() {
        assert_eq!(choose(None).0, ["GPU-aa11", "GPU-aa22", "MIG-1111", "MIG-2222"]);
        for none in ["", " ", "-1", "NoDevFiles"] {
            assert_eq!(choose(Some(none)), (vec![], vec![]), "{none:?}");
        }
    }

    #[test]
    fn positions_and_uuids_choose_in_their_order() {
        assert_eq!(choose(Some("1,0")).0, ["GPU-aa22", "GPU-aa11"]);
        assert_eq!(choose(Some("GPU-aa22, MIG-2222")).0, ["GPU-aa22", "MIG-2222"]);
        assert_eq!(choose(Some("GPU-aa2")).0, ["GPU-aa22"]);
        assert_eq!(choose(Some("MIG-1")).0, ["MIG-1111"]);
    }

    #[test]
    fn a_divided_gpu_named_as_a_whole_is_its_first_instance() {
        assert_eq!(choose(Some("2")).0, ["MIG-1111"]);
        assert_eq!(choose(Some("GPU-bb33")).0, ["MIG-1111"]);
    }

    #[test]
    fn an_instance_knows_its_parent() {
        let chosen =
            Visible::parse(Some("MIG-2222")).choose(&machine(), Order::BySpeed, &mut Vec::new());
        assert_eq!(chosen[0].parent, Some("GPU-bb33".parse().unwrap()));
    }

    #[test]
    fn an_instance_is_known_by_the_name_that_older_drivers_gave_it() {
        assert_eq!(choose(Some("MIG-GPU-bb33/8/0")).0, ["MIG-2222"]);
        let (ids, warnings) = choose(Some("MIG-GPU-bb33/8/1"));
        assert_eq!((ids.len(), warnings.len()), (0, 1), "no such compute instance: {warnings:?}");
    }

    #[test]
    fn only_uuids_given_to_the_container_bind() {
        let keep = |variable: Option<&str>| {
            let mut warnings = Vec::new();
            let all = Visible::All.choose(&machine(), Order::BySpeed, &mut warnings);
            let kept = Given::parse(variable).keep(all, &mut warnings);
            let ids: Vec<String> = kept.into_iter().map(|one| one.id.to_string()).collect();
            (ids.join(" "), warnings.iter().map(ToString::to_string).collect::<String>())
        };
        let all = "GPU-aa11 GPU-aa22 MIG-1111 MIG-2222";
        // Positions are the host's; `void` is what a container finds whose devices come by CDI.
        for free in
            [None, Some(""), Some("all"), Some("none"), Some("void"), Some("0,1"), Some("2:0")]
        {
            assert_eq!(keep(free), (all.to_owned(), String::new()), "{free:?}");
        }
        let (kept, told) = keep(Some("GPU-aa22"));
        assert_eq!(kept, "GPU-aa22");
        assert_eq!(
            told,
            "GPU-aa11, MIG-1111, MIG-2222 are left alone: NVIDIA_VISIBLE_DEVICES gives this container \
             others"
        );
        assert_eq!(keep(Some("GPU-aa22,")).0, "GPU-aa22", "a comma too many gives no more");
        assert_eq!(keep(Some("MIG-2222")).0, "MIG-2222");
        assert_eq!(keep(Some("MIG-GPU-bb33/7/0")).0, "MIG-1111", "its older name");
        assert_eq!(keep(Some("GPU-bb33")).0, "MIG-1111 MIG-2222", "a divided GPU is its instances");
        assert_eq!(keep(Some("GPU-cc44")).0, "", "not one of ours");
    }

    #[test]
    fn what_follows_an_unknown_entry_is_not_used() {
        for unknown in ["7", "GPU-ff", "GPU-aa", "h200", "GPU-aa11ff"] {
            let (ids, warnings) = choose(Some(&format!("1,{unknown},0")));
            assert_eq!(ids, ["GPU-aa22"], "{unknown}");
            assert!(warnings[0].contains(&format!("names `{unknown}`, which is no device")));
        }
        assert_eq!(choose(Some("0,-1,1")), (vec!["GPU-aa11".to_owned()], vec![]));
    }

    #[test]
    fn a_gap_in_the_list_moves_no_position() {
        let mut gap = machine();
        gap.remove(0);
        assert_eq!(choose_of(&gap, Some("1"), Order::ByBus).0, ["GPU-aa22"]);
        assert_eq!(choose_of(&gap, Some("0"), Order::ByBus).0, Vec::<String>::new());
    }

    #[test]
    fn a_device_named_twice_is_used_once() {
        let (ids, warnings) = choose(Some("0,GPU-aa11"));
        assert_eq!(ids, ["GPU-aa11"]);
        assert!(warnings[0].contains("`GPU-aa11`, which it already names"), "{warnings:?}");
    }

    #[test]
    fn counting_unlike_gpus_is_a_warning_unless_the_order_is_told() {
        let mixed = [gpu(0, "GPU-aa11", "A100", None), gpu(1, "GPU-aa22", "H200", None)];
        let warned = |variable, order| choose_of(&mixed, Some(variable), order).1.join("");
        assert!(warned("0", Order::BySpeed).contains("CUDA_DEVICE_ORDER=PCI_BUS_ID"));
        assert_eq!(warned("0", Order::ByBus), "");
        assert_eq!(warned("GPU-aa22", Order::BySpeed), "");
        assert_eq!(Order::parse(Some("PCI_BUS_ID")), Order::ByBus);
        assert_eq!(Order::parse(None), Order::BySpeed);
    }
}
