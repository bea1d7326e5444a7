//! A large run after a restart: how long until it goes on, and what it takes.

use std::time::Instant;

use orchestrator_plan::{Measured, plan};
use orchestrator_run::Attempt;
use orchestrator_types::NodeName;

use super::*;

/// Shards of one data set, many more than a plan would make: each has a unit that encodes it.
const SHARDS: u32 = 1_000_000;

fn large(inventory: &Inventory) -> crate::driver::Submitted {
    let evaluation = "version: 1
name: large
models: [{path: m}]
datasets: {a: {format: imagefolder, path: a}}
tasks: [{zero_shot: {dataset: a}}]
";
    let evaluation = orchestrator_spec::parse("eval.yaml", evaluation, &[]).unwrap();
    let mut facts = fixtures::facts();
    facts.datasets.retain(|name, _| name.as_str() == "a");
    let (base, measured) = (std::path::Path::new("/base"), Measured::default());
    let mut plan = plan(&evaluation, &facts, inventory, base, &measured).unwrap();
    let images = plan.units.iter().find(|unit| matches!(unit.work, Work::EncodeImages(_)));
    let images = images.expect("images are encoded").clone();
    let shard = |number: u32| {
        let mut unit = images.clone();
        unit.id = orchestrator_types::UnitId(number);
        unit.rows = 1;
        if let Work::EncodeImages(work) = &mut unit.work {
            work.shard = orchestrator_types::Shard { start: number, end: number + 1 };
        }
        unit
    };
    plan.units = (0..SHARDS).map(shard).collect();
    let json = serde_json::to_string(&plan).unwrap();
    let small = fixtures::submitted("r", inventory).submission;
    let units = u32::try_from(plan.units.len()).unwrap();
    let submission = crate::store::Submission { units, plan: json, ..small };
    crate::driver::Submitted { submission, plan }
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn attempt(unit: &orchestrator_plan::Unit, node: &NodeName, token: FencingToken) -> Attempt {
    Attempt {
        unit: unit.id,
        number: 1,
        token,
        session: "s".parse().unwrap(),
        node: node.clone(),
        slice: "n.0".parse().unwrap(),
        started: Millis(0),
        terms: orchestrator_run::Terms::default(),
        elsewhere: false,
    }
}

/// Commits every unit but the last one, which keeps the run open.
fn commit_all(store: &mut Store, submitted: &crate::driver::Submitted) {
    let key = store.insert_run(&submitted.submission, 1).unwrap();
    let node: NodeName = "n".parse().unwrap();
    let blob = |unit: &orchestrator_plan::Unit| Digest::of(&unit.id.0.to_le_bytes());
    let mut template = fixtures::example();
    let (_, units) = submitted.plan.units.split_last().unwrap();
    for batch in units.chunks(5_000) {
        store.begin().unwrap();
        for unit in batch {
            let token = store.next_token().unwrap();
            store.use_token();
            template.blob.digest = blob(unit);
            template.samples = matches!(unit.work, Work::EncodeImages(_)).then(|| blob(unit));
            let attempt = attempt(unit, &node, token);
            store.commit_unit(key, &attempt, Some(1), &template, 2).unwrap();
        }
        store.commit().unwrap();
    }
}

#[test]
#[ignore = "takes minutes; run it by name, in a release build"]
fn a_million_committed_units_are_taken_up() {
    let state = tempfile::tempdir().unwrap();
    let inventory = Inventory { slices: vec![fixtures::offer("n", 0)] };
    let submitted = large(&inventory);
    let units = submitted.plan.units.len();
    let mut store = Store::open(state.path()).unwrap();
    let started = Instant::now();
    commit_all(&mut store, &submitted);
    eprintln!("{units} units committed in {:.1?}", started.elapsed());
    drop((store, submitted));

    let bytes = std::fs::metadata(state.path().join("store.sqlite")).unwrap().len();
    let started = Instant::now();
    let store = Store::open(state.path()).unwrap();
    eprintln!("{} MB opened after an unclean stop in {:.2?}", bytes / 1_000_000, started.elapsed());
    store.close().unwrap();
    let before = resident_bytes();
    let started = Instant::now();
    let store = Store::open(state.path()).unwrap();
    eprintln!("opened after a clean stop in {:.2?}", started.elapsed());
    let (key, _) = {
        let run = store.running().unwrap().remove(0);
        store.run_state(&run).unwrap().unwrap()
    };
    let rows = Instant::now();
    let mut committed = 0;
    store.committed(key, |_| committed += 1).unwrap();
    eprintln!("{committed} rows read in {:.2?}", rows.elapsed());
    drop(store);

    let started = Instant::now();
    let bench = Bench::in_folder(state);
    eprintln!("the driver works after {:.2?}", started.elapsed());
    let taken = resident_bytes().saturating_sub(before);
    eprintln!("{} bytes of memory a unit", taken / units as u64);
    let (_, active) = bench.driver.runs.first_key_value().unwrap();
    assert_eq!(active.committed() as usize, units - 1);
}
