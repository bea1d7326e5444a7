//! Several hosts: a network namespace each, with an address of its own, on this machine.

use orchestrator_tests::{
    captions,
    cluster::{Cluster, Setup, document, wait_until},
    data,
    hosts::Network,
    task_metrics,
};

const IMAGES: usize = 200;
/// A shard whose result travels inside its commit: what is late is the commit itself.
const FEW: usize = 2;

/// Two datasets, so that there are two image units, one of them tiny.
fn evaluation(cluster: &Cluster) -> std::path::PathBuf {
    cluster.home().write("many.jsonl", captions(IMAGES));
    cluster.home().write("few.jsonl", captions(FEW));
    let model = data().join("models/tiny-clip");
    let text = format!(
        "version: 1\nname: hosts\nmodels: [{{path: {}}}]\ndatasets:\n  few: {{format: captions, \
         path: few.jsonl}}\n  many: {{format: captions, path: many.jsonl}}\ntasks:\n  - \
         retrieval: {{dataset: few}}\n  - retrieval: {{dataset: many}}\nplacement: {{split: \
         always}}\n",
        model.display()
    );
    cluster.home().write("eval.yaml", text)
}

/// One host is cut off for longer than the lease while it works. Others finish what it had; its
/// late commit is fenced, and it works on.
#[test]
fn needs_root_a_host_that_is_cut_off_is_fenced_and_comes_back() {
    let hosts = ["coordinator", "a", "b", "c"];
    let network = match Network::of(&hosts) {
        Ok(network) => network,
        Err(reason) => {
            eprintln!("SKIPPED: several hosts: {reason}");
            return;
        }
    };
    let open = vec!["--insecure-plaintext".to_owned()];
    let setup = Setup { coordinator: open.clone(), worker: open, ..Setup::default() };
    let mut cluster = Cluster::prepare_on(network, setup);
    cluster.start_coordinator();
    for worker in &hosts[1..] {
        cluster.start_worker(worker);
    }
    let evaluation = evaluation(&cluster);
    // Nobody gets anything done before we know who has a tiny unit.
    for worker in &hosts[1..] {
        cluster.freeze_executors(worker);
    }
    let submit = cluster.submit(&evaluation, &[]);
    let mut found = None;
    cluster.wait_for_status("an attempt on a tiny unit", |status| {
        let attempts = status["attempts"].as_array().unwrap();
        let tiny = attempts.iter().find(|attempt| attempt["rows"] == FEW);
        found = tiny.map(|attempt| attempt["unit"].as_u64().unwrap());
        found.is_some()
    });
    let open = cluster.history().open();
    let lease = open.iter().find(|lease| Some(lease.unit) == found).unwrap().clone();
    let worker = lease.slice.strip_suffix(".0").unwrap().to_owned();
    cluster.network().cut_off(&worker);
    for worker in &hosts[1..] {
        cluster.continue_executors(worker);
    }
    cluster.wait_for_history("the loss", |history| history.has_lost(&lease));
    cluster.network().connect(&worker);
    let ended = document(submit, 0);

    cluster.wait_for_history("the late commit", |history| {
        let late = history.of_kind("late_result");
        late.into_iter().any(|late| late["unit"] == lease.unit && late["token"] == lease.token)
    });
    let units = cluster.json(&["status", "last"])["units"].as_u64().unwrap();
    let history = cluster.history();
    assert_eq!(history.miscount(units), None);
    assert!(history.attempts(lease.unit) >= 2);
    let embedded = cluster.home().submit(&evaluation, &[], 0);
    assert_eq!(task_metrics(&ended["report"]), task_metrics(&embedded["report"]));

    wait_until("the worker's return", || {
        let nodes = cluster.json(&["nodes"]);
        nodes["workers"].as_array().unwrap().len() == 3
    });
    // Other hosts reach it in plaintext, and whoever looks is told.
    assert_eq!(cluster.json(&["nodes"])["insecure"], true);
    let told = cluster.run(&["nodes"]).stderr;
    assert!(told.contains("was started with --insecure-plaintext"), "{told}");
    for other in &hosts[1..] {
        if *other != worker {
            cluster.terminate_worker(other);
        }
    }
    let again = cluster.submit(&evaluation, &[]);
    document(again, 0);
    let slice = format!("{worker}.0");
    assert!(cluster.history().leases().all(|lease| lease.slice == slice));
}
