//! `orchestrator nodes`: what this machine offers, and who holds or held its bytes; of a cluster, the
//! same of each worker.

mod workers;

use anyhow::Context as _;
use comfy_table::{CellAlignment, Table, presets};
use orchestrator_ledger::{Account, Holder};
use orchestrator_plan::{Placement, SliceOffer};
use orchestrator_report::AccountEvidence;
use orchestrator_types::{ByteCount, DeviceId, NodeName, SliceId, wording::steers};
use serde::Serialize;

use crate::{
    args, cluster,
    devices::{DeviceChoice, Found},
    exit::{Exit, Failure},
    local, print_line,
    runs::moment,
    state::{State, Stored},
};

/// What `--json` prints.
#[derive(Serialize)]
struct Nodes {
    schema: &'static str,
    /// What this machine offers now.
    offers: Vec<Offer>,
    /// Why it offers as much as it does.
    reasons: Vec<String>,
    /// Runs in progress; if there is none, the one that ended last.
    runs: Vec<Held>,
}

#[derive(Serialize)]
struct Offer {
    node: NodeName,
    slice: SliceId,
    device: DeviceId,
    threads: u32,
    /// What the slice may use.
    ceiling_bytes: ByteCount,
    /// A GPU's product name.
    name: Option<String>,
    /// A GPU's memory.
    total_bytes: Option<ByteCount>,
    /// What of it nobody uses now.
    free_bytes: Option<ByteCount>,
}

/// A run and the memory of the slices that work or worked on it.
#[derive(Serialize)]
struct Held {
    run: String,
    name: String,
    state: &'static str,
    since: String,
    slices: Vec<Usage>,
}

#[derive(Serialize)]
struct Usage {
    node: NodeName,
    slice: SliceId,
    device: DeviceId,
    quota_bytes: ByteCount,
    /// Accounts come with results: none before the first.
    account: Option<Account>,
}

pub(crate) fn nodes(arguments: &args::Nodes) -> Result<Exit, Failure> {
    if let Some(target) = cluster::target(&arguments.cluster)? {
        return workers::nodes(arguments, &target);
    }
    let local::Machine { inventory, gpus, reasons } = local::machine(1, &DeviceChoice::Auto)?;
    let stored = State::of_user()?.runs()?;
    let runs = told(&stored).into_iter().map(held).collect::<anyhow::Result<Vec<_>>>()?;
    let offers = inventory.slices.into_iter().map(|slice| offer(slice, &gpus)).collect();
    let nodes = Nodes { schema: "orchestrator.nodes/1", offers, reasons, runs };
    if arguments.json {
        let json = serde_json::to_string_pretty(&nodes).context("failed to encode")?;
        return print_line(&json);
    }
    print_line(&render(&nodes))
}

/// Runs in progress, or else the one that ended last.
fn told(stored: &[Stored]) -> Vec<&Stored> {
    let running: Vec<&Stored> =
        stored.iter().filter(|stored| stored.state_word() == "running").collect();
    if !running.is_empty() {
        return running;
    }
    let at = |stored: &&Stored| {
        let summary = &stored.summary;
        (summary.ended_unix_ms.unwrap_or(summary.created_unix_ms), summary.created_unix_ms)
    };
    stored.iter().max_by_key(at).into_iter().collect()
}

fn offer(offer: SliceOffer, gpus: &[Found]) -> Offer {
    let SliceOffer { id, node, device, threads, memory_bytes } = offer;
    let gpu = gpus.iter().find(|gpu| gpu.id == device);
    Offer {
        name: gpu.map(|gpu| gpu.name.clone()),
        total_bytes: gpu.and_then(|gpu| gpu.total_bytes),
        free_bytes: gpu.and_then(|gpu| gpu.free_bytes),
        node,
        slice: id,
        device,
        threads,
        ceiling_bytes: memory_bytes,
    }
}

fn held(stored: &Stored) -> anyhow::Result<Held> {
    let run = &stored.summary.id;
    let slices = stored.reader.slices(run).context("failed to read the run's slices")?;
    let units = stored.reader.units(run).context("failed to read the run's units")?;
    let account = |slice: &SliceId| {
        let own = units.iter().filter(|row| row.slice.as_ref() == Some(slice));
        let accounts: Vec<AccountEvidence> = own
            .filter_map(|row| {
                let account = row.result.as_ref()?.account.clone()?;
                let committed_unix_ms = row.ended_unix_ms.unwrap_or_default();
                Some(AccountEvidence { committed_unix_ms, account })
            })
            .collect();
        orchestrator_report::newest(&accounts).cloned()
    };
    let slices = slices.into_iter().map(|row| {
        let Placement { slice, node, device, quota_bytes, .. } = row.placement;
        let account = account(&slice);
        let quota_bytes = account.as_ref().map_or(quota_bytes, |account| account.quota_bytes);
        Usage { node, slice, device, quota_bytes, account }
    });
    let summary = &stored.summary;
    Ok(Held {
        run: run.to_string(),
        name: summary.name.clone(),
        state: stored.state_word(),
        since: moment(summary.ended_unix_ms.unwrap_or(summary.created_unix_ms)),
        slices: slices.collect(),
    })
}

fn render(nodes: &Nodes) -> String {
    let mut parts = vec![offers(&nodes.offers), nodes.reasons.join("\n")];
    for run in &nodes.runs {
        let Held { run, name, state, since, slices } = run;
        let name = name.replace(steers, "\u{fffd}");
        parts.push(format!("run {run} ({name}): {state} since {since}"));
        parts.push(usage(slices));
        parts.extend(holders(slices));
    }
    if nodes.runs.is_empty() {
        parts.push(
            "no run has used them yet; start one with `orchestrator submit eval.yaml`".into(),
        );
    }
    parts.join("\n\n")
}

fn offers(offers: &[Offer]) -> String {
    let mut table = table(&["slice", "device", "name", "threads", "ceiling", "free", "total"], 3);
    let bytes =
        |bytes: Option<ByteCount>| bytes.map_or_else(|| "–".to_owned(), |bytes| bytes.to_string());
    for offer in offers {
        table.add_row([
            offer.slice.to_string(),
            offer.device.to_string(),
            offer.name.clone().unwrap_or_else(|| "–".to_owned()),
            offer.threads.to_string(),
            offer.ceiling_bytes.to_string(),
            bytes(offer.free_bytes),
            bytes(offer.total_bytes),
        ]);
    }
    table.trim_fmt()
}

fn usage(slices: &[Usage]) -> String {
    let columns =
        ["slice", "device", "quota", "held", "allocated peak", "device peak", "host now", "ooms"];
    let mut table = table(&columns, 2);
    for Usage { node: _, slice, device, quota_bytes, account } in slices {
        let dash = || "–".to_owned();
        let of = |bytes: fn(&Account) -> Option<ByteCount>| {
            account.as_ref().and_then(bytes).map_or_else(dash, |bytes| bytes.to_string())
        };
        table.add_row([
            slice.to_string(),
            device.to_string(),
            quota_bytes.to_string(),
            of(|account| Some(sum(&account.holders))),
            of(|account| Some(account.allocated_peak_bytes)),
            of(|account| account.device_peak_bytes),
            of(|account| Some(account.host.resident_bytes)),
            account.as_ref().map_or_else(dash, |account| account.ooms.to_string()),
        ]);
    }
    table.trim_fmt()
}

/// Who holds what, the largest first; nothing where nobody holds anything.
fn holders(slices: &[Usage]) -> Option<String> {
    let mut table = table(&["slice", "bytes", "held by"], 3);
    table.column_mut(1)?.set_cell_alignment(CellAlignment::Right);
    let mut any = false;
    for slice in slices {
        let Some(account) = &slice.account else { continue };
        let mut holders: Vec<&Holder> = account.holders.iter().collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        for Holder { owner, bytes } in holders {
            let owner = owner.to_string().replace(steers, "\u{fffd}");
            table.add_row([slice.slice.to_string(), bytes.to_string(), owner]);
            any = true;
        }
    }
    any.then(|| table.trim_fmt())
}

fn sum(holders: &[Holder]) -> ByteCount {
    let bytes = holders.iter().map(|holder| holder.bytes.as_u64());
    ByteCount::bytes(bytes.fold(0, u64::saturating_add))
}

/// The columns from `numbers` on stand right.
fn table(columns: &[&str], numbers: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(columns);
    for column in table.column_iter_mut().skip(numbers) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
pub(crate) mod tests {
    use orchestrator_ledger::{HostReading, Owner, PhaseReadings};
    use orchestrator_types::{Component, Precision};

    use super::*;

    pub(crate) fn account() -> Account {
        let owner = Owner::Weights {
            model: "tiny-clip\u{1b}".to_owned(),
            component: Component::Vision,
            precision: Precision::Fp32,
        };
        let holder = |owner, mib| Holder { owner, bytes: ByteCount::mib(mib) };
        Account {
            started_at_unix_ms: 1,
            device: DeviceId::Cpu,
            driver: None,
            quota_bytes: ByteCount::mib(512),
            allocator: "counting".to_owned(),
            baseline_bytes: None,
            weights_bytes: ByteCount::mib(15),
            predicted_peak_bytes: ByteCount::mib(60),
            allocated_peak_bytes: ByteCount::mib(58),
            reserved_peak_bytes: ByteCount::mib(58),
            device_peak_bytes: None,
            outside_allocator_bytes: None,
            host: HostReading { resident_bytes: ByteCount::mib(170), ..HostReading::default() },
            fragmentation: None,
            ooms: 1,
            retries: 0,
            splits: 1,
            phases: PhaseReadings::default(),
            forecasts: Vec::new(),
            peak_holders: Vec::new(),
            holders: vec![holder(Owner::Texts, 2), holder(owner, 15)],
            breaches: Vec::new(),
            samples: Vec::new(),
        }
    }

    fn nodes() -> Nodes {
        let slice = |number: u32, account| Usage {
            node: "laptop".parse().unwrap(),
            slice: format!("laptop.{number}").parse().unwrap(),
            device: DeviceId::Cpu,
            quota_bytes: ByteCount::mib(512),
            account,
        };
        let offer = Offer {
            node: "laptop".parse().unwrap(),
            slice: "laptop.0".parse().unwrap(),
            device: DeviceId::Gpu("GPU-8f6a1c52-17ab-4c1f-9a3e-0123456789ab".to_owned()),
            threads: 16,
            ceiling_bytes: ByteCount::gib(138),
            name: Some("NVIDIA H200".to_owned()),
            total_bytes: Some(ByteCount::gib(140)),
            free_bytes: Some(ByteCount::gib(139)),
        };
        let run = Held {
            run: "01k0".to_owned(),
            name: "tiny-clip on emoji".to_owned(),
            state: "running",
            since: "2026-11-30 14:00:00".to_owned(),
            slices: vec![slice(0, Some(account())), slice(1, None)],
        };
        let reasons =
            vec!["GPU-8f6a1c52-17ab-4c1f-9a3e-0123456789ab offers 138.00 GiB: why".into()];
        Nodes { schema: "orchestrator.nodes/1", offers: vec![offer], reasons, runs: vec![run] }
    }

    #[test]
    fn who_holds_what_is_told() {
        insta::assert_snapshot!(render(&nodes()));
    }

    #[test]
    fn a_machine_without_runs_says_so() {
        let rendered = render(&Nodes { runs: Vec::new(), ..nodes() });
        assert!(rendered.ends_with("orchestrator submit eval.yaml`"), "{rendered}");
    }
}
