//! A cluster whose members show certificates: the same bytes, who may do what, and certificates that
//! are renewed while everything runs.

use std::fs;

use orchestrator_tests::{
    cluster::{Cluster, Setup, document, wait_until},
    small_evaluation, task_metrics,
};
use serde_json::Value;

/// Three shards: one is committed and others are open for seconds.
const IMAGES: usize = 700;

fn certified() -> Cluster {
    Cluster::start(Setup { certified: true, ..Setup::default() })
}

fn issue(cluster: &Cluster, arguments: &[&str]) {
    let issued = cluster.home().run(&[&["certs", "issue"], arguments].concat());
    assert_eq!(issued.code, Some(0), "{issued:#?}");
}

fn audit(cluster: &Cluster) -> Vec<(Value, Value, bool)> {
    let text = fs::read_to_string(cluster.state().join("audit.jsonl")).unwrap();
    let line = |line: &str| -> Value { serde_json::from_str(line).unwrap() };
    text.lines()
        .map(line)
        .map(|line| (line["who"].clone(), line["call"].clone(), line["refused"].is_null()))
        .collect()
}

#[test]
fn a_cluster_with_certificates_gives_the_same_bytes_and_keeps_its_sessions_when_they_are_renewed() {
    let mut cluster = certified();
    cluster.start_worker("a");
    cluster.start_worker("b");
    let evaluation = small_evaluation(cluster.home(), IMAGES, "[auto]");
    let submit = cluster.submit(&evaluation, &[]);
    cluster.wait_for_the_middle();
    let nodes = cluster.json(&["nodes"]);
    let before: Vec<&Value> =
        nodes["workers"].as_array().unwrap().iter().map(|worker| &worker["session"]).collect();
    for role in ["coordinator", "worker"] {
        issue(&cluster, &[role, role, "--replace"]);
    }
    for service in ["coordinator", "a", "b"] {
        wait_until("renewed certificates", || {
            cluster.log(service).contains("the certificates were renewed")
        });
    }
    // A session outlives its connection and its coordinator: who it belongs to stays the same.
    cluster.kill_coordinator();
    cluster.start_coordinator();
    let ridden = document(submit, 0);
    let embedded = cluster.home().submit(&evaluation, &[], 0);
    assert_eq!(task_metrics(&ridden["report"]), task_metrics(&embedded["report"]));
    let nodes = cluster.json(&["nodes"]);
    let workers = nodes["workers"].as_array().unwrap();
    let after: Vec<&Value> = workers.iter().map(|worker| &worker["session"]).collect();
    assert_eq!(after, before);
    assert!(workers.iter().all(|worker| worker["identity"] == "worker/worker"), "{nodes}");
    assert_eq!(nodes["insecure"], false);
    let shown = cluster.run(&["nodes"]).stdout;
    assert!(shown.contains("certificate") && shown.contains("worker/worker"), "{shown}");

    assert_eq!(cluster.terminate_worker("b"), Some(0));
    let audit = audit(&cluster);
    for (who, call) in
        [("worker/worker", "register"), ("client/client", "submit"), ("worker/worker", "goodbye")]
    {
        assert!(audit.contains(&(who.into(), call.into(), true)), "{call} of {who} in {audit:?}");
    }
}

#[test]
fn a_run_belongs_to_who_submitted_it() {
    let mut cluster = certified();
    cluster.start_worker("a");
    issue(&cluster, &["client", "mallory"]);
    let evaluation = small_evaluation(cluster.home(), IMAGES, "[auto]");
    let path = evaluation.to_str().unwrap();
    let detached = cluster.run(&["submit", path, "--detach"]);
    assert_eq!(detached.code, Some(0), "{detached:#?}");
    let run = detached.stdout.trim();

    let refused = cluster.run(&["cancel", run, "--tls", "certs/mallory"]);
    assert_eq!(refused.code, Some(2), "{refused:#?}");
    assert!(
        refused
            .stderr
            .contains("the run was submitted by client/client, and client/mallory may not"),
        "{refused:#?}"
    );
    assert_eq!(cluster.json(&["status", run])["state"], "running");
    let cancelled = cluster.run(&["cancel", run, "--tls", "certs/admin"]);
    assert_eq!(cancelled.code, Some(0), "{cancelled:#?}");
    let resume = ["resume", run, "--tls", "certs/mallory"];
    assert_eq!(cluster.run(&resume).code, Some(2));
    // In a worker's place: it is let in, and may not ask who else is there.
    let doctor = cluster.run(&["doctor", "--tls", "certs/worker"]);
    assert_eq!(doctor.code, Some(0), "{doctor:#?}");
    assert!(doctor.stdout.contains("takes this certificate"), "{doctor:#?}");
    // Looking is free.
    assert_eq!(cluster.run(&["status", run, "--tls", "certs/mallory"]).code, Some(0));
    let audit = audit(&cluster);
    assert!(audit.contains(&("client/mallory".into(), "cancel".into(), false)), "{audit:?}");
    assert!(audit.contains(&("admin/admin".into(), "cancel".into(), true)), "{audit:?}");
}
