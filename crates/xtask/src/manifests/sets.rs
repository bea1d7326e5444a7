//! What we ask of objects that are applied together: nothing points into the void, and the default
//! deny covers every pod.

use super::named;
use super::pods::{list, template};
use serde_json::Value;
use std::collections::BTreeSet;

pub(super) fn problems(objects: &[Value]) -> Vec<String> {
    let mut found = Vec::new();
    let pods: Vec<&Value> = objects.iter().filter_map(template).collect();
    names(objects, &mut found);
    for object in objects {
        for (place, selector) in selectors(object) {
            if !pods.iter().any(|pod| selects(selector, pod)) {
                found.push(format!("{}: {place} selects no pod", named(object)));
            }
        }
        found.extend(missing_ports(object, &pods));
    }
    for object in objects.iter().filter(|object| template(object).is_some()) {
        found.extend(uncovered(object, objects));
        found.extend(unmatched(object));
        found.extend(missing_objects(object, objects));
    }
    found
}

fn names(objects: &[Value], found: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for object in objects {
        if !seen.insert(named(object)) {
            found.push(format!("{} stands twice", named(object)));
        }
    }
}

/// Selectors that must select a pod of the same set.
fn selectors(object: &Value) -> Vec<(&'static str, &Value)> {
    let at = |place: &'static str| object.pointer(place).map(|value| (place, value));
    match object["kind"].as_str() {
        Some("Service") => at("/spec/selector").into_iter().collect(),
        Some("PodDisruptionBudget") => at("/spec/selector/matchLabels").into_iter().collect(),
        Some("NetworkPolicy") => at("/spec/podSelector/matchLabels").into_iter().collect(),
        _ => Vec::new(),
    }
}

fn selects(selector: &Value, pod: &Value) -> bool {
    let labels = &pod["metadata"]["labels"];
    selector.as_object().is_some_and(|wanted| {
        !wanted.is_empty() && wanted.iter().all(|(name, value)| labels.get(name) == Some(value))
    })
}

/// A Service's `targetPort` must be the name of a port of each pod that it selects.
fn missing_ports(object: &Value, pods: &[&Value]) -> Vec<String> {
    if object["kind"] != "Service" {
        return Vec::new();
    }
    let selected = pods.iter().filter(|pod| selects(&object["spec"]["selector"], pod));
    let offered: Vec<&Value> = selected
        .flat_map(|pod| list(&pod["spec"]["containers"]))
        .flat_map(|container| list(&container["ports"]))
        .map(|port| &port["name"])
        .collect();
    list(&object["spec"]["ports"])
        .filter(|port| !offered.contains(&&port["targetPort"]))
        .map(|port| format!("{}: no pod has port {}", named(object), port["targetPort"]))
        .collect()
}

/// A pod that no policy denies everything to.
fn uncovered(object: &Value, objects: &[Value]) -> Option<String> {
    let pod = template(object)?;
    let denies = |policy: &&Value| {
        let spec = &policy["spec"];
        policy["kind"] == "NetworkPolicy"
            && spec.get("ingress").is_none()
            && spec.get("egress").is_none()
            && ["Ingress", "Egress"]
                .iter()
                .all(|kind| list(&spec["policyTypes"]).any(|t| t == kind))
            && selects(&spec["podSelector"]["matchLabels"], pod)
    };
    let covered = objects.iter().any(|policy| denies(&policy));
    (!covered).then(|| format!("{}: no policy denies its traffic by default", named(object)))
}

/// A controller that does not select its own pods.
fn unmatched(object: &Value) -> Option<String> {
    let pod = template(object)?;
    let selector = object.pointer("/spec/selector/matchLabels")?;
    (!selects(selector, pod)).then(|| format!("{} does not select its own pods", named(object)))
}

/// Accounts and maps that a pod names, and that this set does not bring. Secrets and claims are the
/// user's.
fn missing_objects(object: &Value, objects: &[Value]) -> Vec<String> {
    let Some(pod) = template(object).map(|template| &template["spec"]) else { return Vec::new() };
    let account = ("ServiceAccount", &pod["serviceAccountName"]);
    let maps = list(&pod["volumes"]).filter_map(|volume| volume.pointer("/configMap/name"));
    let wanted = maps.map(|name| ("ConfigMap", name)).chain([account]);
    wanted
        .filter(|(kind, name)| {
            !objects
                .iter()
                .any(|other| other["kind"] == *kind && other["metadata"]["name"] == **name)
        })
        .map(|(kind, name)| format!("{}: there is no {kind} {name}", named(object)))
        .collect()
}
