//! The memory part of `report.md`: peaks, phases, predictions, holders and breaches.

use orchestrator_ledger::Holder;

use super::{LISTED, escaped, row};
use crate::{
    report::{Forecast, Node, PhaseMemory},
    rows::{self, bytes},
};

pub(super) fn write(lines: &mut Vec<String>, nodes: &[Node]) {
    if nodes.is_empty() {
        return;
    }
    slices(lines, nodes);
    let measured: Vec<&Node> =
        nodes.iter().filter(|node| node.memory.allocated_peak_bytes.is_some()).collect();
    if measured.is_empty() {
        return;
    }
    peaks(lines, &measured);
    phases(lines, &measured);
    predictions(lines, &measured);
    holders(lines, &measured);
    breaches(lines, &measured);
}

fn slices(lines: &mut Vec<String>, nodes: &[Node]) {
    lines.push("\n## Slices\n".to_owned());
    header(
        lines,
        &["node", "slice", "device", "components", "allocator"],
        &["quota", "weights", "host peak"],
    );
    for node in nodes {
        let components: Vec<_> = node.components.iter().map(|part| part.name()).collect();
        let allocator = node.memory.allocator.as_deref();
        row(
            lines,
            [
                node.node.to_string(),
                node.slice.to_string(),
                escaped(&node.device.to_string()),
                components.join(", "),
                allocator.map_or_else(|| "–".to_owned(), escaped),
                bytes(node.quota_bytes),
                bytes(node.memory.weights_bytes),
                bytes(node.memory.host_peak_bytes),
            ],
        );
    }
}

fn peaks(lines: &mut Vec<String>, nodes: &[&Node]) {
    lines.push("\n## Memory\n".to_owned());
    let numbers = [
        "quota",
        "predicted peak",
        "allocated peak",
        "reserved peak",
        "device peak",
        "outside the allocator",
        "fragmentation",
        "ooms",
        "retries",
        "splits",
    ];
    header(lines, &["slice"], &numbers);
    let count =
        |count: Option<u64>| count.map_or_else(|| "–".to_owned(), |count| count.to_string());
    for node in nodes {
        let memory = &node.memory;
        let share = memory.fragmentation.map(|share| format!("{:.1} %", share * 100.0));
        row(
            lines,
            [
                node.slice.to_string(),
                bytes(node.quota_bytes),
                bytes(memory.predicted_peak_bytes),
                bytes(memory.allocated_peak_bytes),
                bytes(memory.reserved_peak_bytes),
                bytes(memory.device_peak_bytes),
                bytes(memory.outside_allocator_bytes),
                share.unwrap_or_else(|| "–".to_owned()),
                count(memory.ooms),
                count(memory.retries),
                count(memory.splits),
            ],
        );
    }
    lines.push(String::new());
    header(
        lines,
        &["slice"],
        &["anonymous", "mapped files", "pinned", "cgroup use", "cgroup limit"],
    );
    for node in nodes {
        let host = &node.memory.host;
        row(
            lines,
            [
                node.slice.to_string(),
                bytes(host.anonymous_bytes),
                bytes(host.mapped_bytes),
                bytes(host.pinned_bytes),
                bytes(host.cgroup_used_bytes),
                bytes(host.cgroup_limit_bytes),
            ],
        );
    }
}

fn phases(lines: &mut Vec<String>, nodes: &[&Node]) {
    lines.push("\n## Memory by phase\n".to_owned());
    header(lines, &["slice", "phase"], &["seconds", "allocated", "reserved", "device", "host"]);
    for node in nodes {
        let phases = &node.memory.phases;
        for (name, phase) in
            [("load", phases.load), ("warm-up", phases.warm_up), ("run", phases.run)]
        {
            let PhaseMemory { seconds, .. } = phase;
            row(
                lines,
                [
                    node.slice.to_string(),
                    name.to_owned(),
                    seconds.map_or_else(|| "–".to_owned(), |seconds| format!("{seconds:.2}")),
                    bytes(phase.allocated_peak_bytes),
                    bytes(phase.reserved_peak_bytes),
                    bytes(phase.device_peak_bytes),
                    bytes(phase.host_peak_bytes),
                ],
            );
        }
    }
}

fn predictions(lines: &mut Vec<String>, nodes: &[&Node]) {
    if nodes.iter().all(|node| node.memory.forecasts.is_empty()) {
        return;
    }
    lines.push("\n## Predictions\n".to_owned());
    let numbers = ["rows", "tokens", "predicted", "measured", "error", "probes"];
    header(lines, &["slice", "model", "component", "precision"], &numbers);
    for node in nodes {
        for forecast in &node.memory.forecasts {
            let Forecast { component, model, precision, rows, tokens, probes, .. } = forecast;
            row(
                lines,
                [
                    node.slice.to_string(),
                    escaped(model),
                    component.to_string(),
                    precision.to_string(),
                    rows.to_string(),
                    tokens.to_string(),
                    forecast.predicted_bytes.to_string(),
                    bytes(forecast.measured_bytes),
                    rows::error(forecast.error_percent),
                    probes.to_string(),
                ],
            );
        }
    }
    lines.push(String::new());
    for node in nodes {
        for Forecast { component, model, precision, rows, reason, .. } in &node.memory.forecasts {
            let what = format!("{} {model} {component} {precision}, {rows} rows", node.slice);
            lines.push(format!("- {}: {}", escaped(&what), escaped(reason)));
        }
    }
}

fn holders(lines: &mut Vec<String>, nodes: &[&Node]) {
    let at_peak = |node: &Node| node.memory.peak_holders.clone();
    held(lines, nodes, "Held when most was leased", at_peak);
    held(lines, nodes, "Held at the end", |node| node.memory.holders.clone());
}

fn held(lines: &mut Vec<String>, nodes: &[&Node], title: &str, of: impl Fn(&Node) -> Vec<Holder>) {
    if nodes.iter().all(|node| of(node).is_empty()) {
        return;
    }
    lines.push(format!("\n## {title}\n"));
    header(lines, &["slice", "by"], &["bytes"]);
    for node in nodes {
        for holder in of(node) {
            let owner = escaped(&holder.owner.to_string());
            row(lines, [node.slice.to_string(), owner, holder.bytes.to_string()]);
        }
    }
}

fn breaches(lines: &mut Vec<String>, nodes: &[&Node]) {
    let breaches: Vec<String> = nodes
        .iter()
        .flat_map(|node| node.memory.breaches.iter().map(move |breach| (node, breach)))
        .map(|(node, breach)| format!("- {}: {}", node.slice, escaped(&rows::breach(breach))))
        .collect();
    if breaches.is_empty() {
        return;
    }
    lines.push(format!("\n## Quota exceeded {}\n", rows::times(breaches.len())));
    lines.extend(breaches.iter().take(LISTED).cloned());
    if breaches.len() > LISTED {
        lines.push(format!("- … and {} more; `report.json` names all.", breaches.len() - LISTED));
    }
}

fn header(lines: &mut Vec<String>, names: &[&str], numbers: &[&str]) {
    row(lines, names.iter().chain(numbers).map(|&column| column.to_owned()));
    let rules = names.iter().map(|_| "---").chain(numbers.iter().map(|_| "---:"));
    row(lines, rules.map(str::to_owned));
}
