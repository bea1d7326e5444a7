//! `orchestrator nodes` of a cluster: every worker, what it works on, who holds its bytes.

use anyhow::Context as _;
use orchestrator_coordinator::{ClusterView, SliceView, WorkerView};
use orchestrator_types::{ByteCount, wording::steers};
use serde::Serialize;

use super::{Usage, holders, sum, table};
use crate::{
    args,
    cluster::{self, failed},
    exit::{Exit, Failure},
    print_line, say,
    target::Target,
};

/// What `--json` prints.
#[derive(Serialize)]
struct Nodes<'a> {
    schema: &'static str,
    #[serde(flatten)]
    cluster: &'a ClusterView,
}

pub(super) fn nodes(arguments: &args::Nodes, target: &Target) -> Result<Exit, Failure> {
    let view = cluster::ask(target, async |cluster| cluster.nodes().await.map_err(failed))?;
    if arguments.json {
        let nodes = Nodes { schema: "orchestrator.cluster_nodes/1", cluster: &view };
        return print_line(&serde_json::to_string_pretty(&nodes).context("failed to encode")?);
    }
    if view.insecure {
        say(
            "warning: this coordinator was started with --insecure-plaintext: whoever reaches it can \
             run evaluations and read results",
        );
    }
    print_line(&render(&view))
}

fn render(view: &ClusterView) -> String {
    if view.workers.is_empty() {
        return "no worker is connected; start one with `orchestrator worker --coordinator URL`"
            .to_owned();
    }
    let mut parts = vec![workers(&view.workers), slices(&view.workers)];
    parts.extend(withdrawn(&view.workers));
    let usages: Vec<Usage> = view.workers.iter().flat_map(usages).collect();
    parts.extend(holders(&usages));
    parts.join("\n\n")
}

fn workers(workers: &[WorkerView]) -> String {
    // Only where there are certificates do they tell anything.
    let certified = workers.iter().any(|worker| worker.identity.is_some());
    let columns =
        ["worker", "certificate", "health", "libtorch", "connected", "last heard", "slices"];
    let columns: Vec<&str> =
        columns.into_iter().filter(|column| certified || *column != "certificate").collect();
    let mut table = table(&columns, columns.len() - 3);
    for worker in workers {
        let identity = worker.identity.clone().unwrap_or_else(|| "–".to_owned());
        let mut row = vec![worker.node.to_string()];
        row.extend(certified.then_some(identity));
        row.extend([
            health(worker).to_owned(),
            worker.libtorch.clone(),
            span(worker.connected_ms),
            format!("{} ago", span(worker.silent_ms)),
            worker.slices.iter().filter(|slice| slice.withdrawn.is_none()).count().to_string(),
        ]);
        table.add_row(row);
    }
    table.trim_fmt()
}

/// A worker that has been silent for half of its lease is on its way to be lost.
fn health(worker: &WorkerView) -> &'static str {
    match worker {
        WorkerView { registered: false, .. } => "awaited",
        _ if worker.silent_ms * 2 > worker.lease_ms => "silent",
        _ => "good",
    }
}

fn slices(workers: &[WorkerView]) -> String {
    let columns = [
        "slice", "device", "health", "works on", "threads", "ceiling", "held", "peak", "host",
        "ooms",
    ];
    let mut table = table(&columns, 4);
    for slice in workers.iter().flat_map(|worker| &worker.slices) {
        let account = slice.account.as_ref();
        let dash = || "–".to_owned();
        let bytes = |bytes: Option<ByteCount>| bytes.map_or_else(dash, |bytes| bytes.to_string());
        table.add_row([
            slice.slice.to_string(),
            slice.device.to_string(),
            if slice.withdrawn.is_some() { "withdrawn" } else { "ok" }.to_owned(),
            work(slice),
            slice.threads.to_string(),
            slice.ceiling_bytes.to_string(),
            bytes(account.map(|account| sum(&account.holders))),
            bytes(account.map(|account| account.allocated_peak_bytes)),
            bytes(account.map(|account| account.host.resident_bytes)),
            account.map_or_else(dash, |account| account.ooms.to_string()),
        ]);
    }
    table.trim_fmt()
}

/// Why slices are not used, one a line; nothing where all are.
fn withdrawn(workers: &[WorkerView]) -> Option<String> {
    let slices = workers.iter().flat_map(|worker| &worker.slices);
    let lines = slices.filter_map(|slice| {
        let why = slice.withdrawn.as_ref()?.replace(steers, "\u{fffd}");
        Some(format!("{} is withdrawn: {why}", slice.slice))
    });
    let lines: Vec<String> = lines.collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// `vision unit 3 of 01k0…, 40 %`
fn work(slice: &SliceView) -> String {
    let attempts = slice.attempts.iter().map(|attempt| {
        let percent = (attempt.done * 100).checked_div(attempt.rows).unwrap_or_default();
        format!("{} unit {} of {}, {percent} %", attempt.component, attempt.unit, attempt.run)
    });
    let attempts: Vec<String> = attempts.collect();
    if attempts.is_empty() { "idle".to_owned() } else { attempts.join("; ") }
}

fn usages(worker: &WorkerView) -> impl Iterator<Item = Usage> {
    worker.slices.iter().map(|slice| Usage {
        node: worker.node.clone(),
        slice: slice.slice.clone(),
        device: slice.device.clone(),
        quota_bytes: slice.ceiling_bytes,
        account: slice.account.clone(),
    })
}

/// As exact as a glance needs.
fn span(ms: u64) -> String {
    match ms / 1_000 {
        0..10 => format!("{:.1} s", ms as f64 / 1_000.0),
        seconds @ 10..60 => format!("{seconds} s"),
        seconds @ 60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds @ 3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        seconds => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use orchestrator_coordinator::AttemptView;
    use orchestrator_types::{Component, DeviceId, FencingToken, UnitId};

    use super::{super::tests::account, *};

    fn slice(name: &str, device: DeviceId, attempts: Vec<AttemptView>) -> SliceView {
        SliceView {
            slice: name.parse().unwrap(),
            device,
            threads: 8,
            ceiling_bytes: ByteCount::gib(2),
            account: (!attempts.is_empty()).then(account),
            attempts,
            withdrawn: None,
        }
    }

    fn worker(node: &str, silent_ms: u64, slices: Vec<SliceView>) -> WorkerView {
        WorkerView {
            identity: (node == "a").then(|| "worker/a".to_owned()),
            node: node.parse().unwrap(),
            session: "01k0session".parse().unwrap(),
            registered: node != "c",
            connected_ms: 7_384_000,
            silent_ms,
            lease_ms: 30_000,
            libtorch: "2.11.0".to_owned(),
            slices,
        }
    }

    #[test]
    fn who_works_on_what_and_holds_what_is_told() {
        let attempt = AttemptView {
            run: "01k0".parse().unwrap(),
            unit: UnitId(3),
            component: Component::Vision,
            attempt: 1,
            token: FencingToken(7),
            slice: "a.0".parse().unwrap(),
            done: 64,
            rows: 256,
        };
        let gpu = DeviceId::Gpu("GPU-8f6a1c52-17ab-4c1f-9a3e-0123456789ab".to_owned());
        let why = "the device is at fault: it is lost, and must be reset (see the kernel's log)";
        let fenced =
            SliceView { withdrawn: Some(why.to_owned()), ..slice("a.1", gpu.clone(), Vec::new()) };
        let workers = vec![
            worker("a", 1_200, vec![slice("a.0", gpu.clone(), vec![attempt]), fenced]),
            worker("b", 21_000, vec![slice("b.0", DeviceId::Cpu, Vec::new())]),
            worker("c", 900, Vec::new()),
        ];
        insta::assert_snapshot!(render(&ClusterView { epoch: 1, insecure: false, workers }));
    }

    #[test]
    fn a_cluster_without_workers_says_what_to_do() {
        insta::assert_snapshot!(render(&ClusterView::default()), @"no worker is connected; start one with `orchestrator worker --coordinator URL`");
    }

    #[test]
    fn spans_are_as_exact_as_a_glance_needs() {
        let shown = [300, 9_900, 59_000, 61_000, 3_700_000, 90_000_000].map(span);
        assert_eq!(shown, ["0.3 s", "9.9 s", "59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]);
    }
}
