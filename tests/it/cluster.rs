//! A coordinator, workers and clients as processes of their own: same numbers as embedded, and a
//! run that nothing but its end or `cancel` stops.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use orchestrator_tests::{
    Home, Outcome,
    cluster::{Cluster, Setup, document, outcome, signal, wait_until},
    small_evaluation, task_metrics,
};
use serde_json::Value;

/// Three shards: one is committed and others are open for seconds.
const IMAGES: usize = 700;

fn two_workers() -> Cluster {
    let mut cluster = Cluster::start(Setup::default());
    cluster.start_worker("a");
    cluster.start_worker("b");
    cluster
}

#[test]
fn a_cluster_gives_the_same_bytes_as_one_machine_and_survives_its_coordinator() {
    let mut cluster = two_workers();
    let evaluation = small_evaluation(cluster.home(), IMAGES, "[auto]");
    let submit = cluster.submit(&evaluation, &[]);
    cluster.wait_for_the_middle();
    cluster.kill_coordinator();
    cluster.start_coordinator();
    let told = outcome(submit);
    assert_eq!(told.code, Some(0), "{told:#?}");
    assert!(told.stderr.contains("does not answer"), "{told:#?}");
    assert!(told.stderr.contains("answers again"), "{told:#?}");
    let ridden: Value = serde_json::from_str(&told.stdout).unwrap();

    let run = ridden["run"].as_str().unwrap();
    let events = cluster.run(&["logs", run, "--json"]);
    let mut committed: Vec<u64> = events
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["event"]["kind"] == "unit_committed")
        .map(|event| event["event"]["unit"].as_u64().unwrap())
        .collect();
    let total = committed.len();
    committed.sort_unstable();
    committed.dedup();
    assert_eq!(committed.len(), total, "a committed unit was computed again");

    let embedded = cluster.home().submit(&evaluation, &[], 0);
    assert_eq!(task_metrics(&ridden["report"]), task_metrics(&embedded["report"]));
    assert_eq!(ridden["report"]["complete"], true);

    let runs = cluster.json(&["runs"]);
    assert_eq!(
        (&runs["runs"][0]["run"], &runs["runs"][0]["state"]),
        (&run.into(), &"complete".into())
    );
    let report = cluster.json(&["report", "last"]);
    assert_eq!(task_metrics(&report), task_metrics(&embedded["report"]));
    let nodes = cluster.json(&["nodes"]);
    assert_eq!(nodes["workers"].as_array().unwrap().len(), 2);
    assert_eq!(nodes["epoch"], 2);
    // Counted since the restart.
    assert!(cluster.metric("orchestrator_commits_total") >= 1);
    assert_eq!(cluster.metric("orchestrator_runs_ended_total{state=\"complete\"}"), 1);
    assert_eq!(cluster.metric("orchestrator_sessions"), 2);
    assert_eq!(cluster.metric("orchestrator_units{state=\"leased\"}"), 0);
}

#[test]
fn a_detached_run_is_watched_and_a_watcher_that_leaves_stops_nothing() {
    let cluster = two_workers();
    let evaluation = small_evaluation(cluster.home(), IMAGES, "[auto]");
    let path = evaluation.to_str().unwrap();
    let detached = cluster.run(&["submit", path, "--detach"]);
    assert_eq!(detached.code, Some(0), "{detached:#?}");
    let run = detached.stdout.trim();
    assert!(detached.stderr.contains(&format!("orchestrator watch {run}")), "{detached:#?}");
    assert!(detached.stderr.contains(&format!("orchestrator cancel {run}")), "{detached:#?}");

    let watch = cluster.client(&["watch", run]);
    cluster.wait_for_the_middle();
    assert!(signal(i32::try_from(watch.id()).unwrap(), Signal::SIGINT));
    let left = outcome(watch);
    assert_eq!(left.code, Some(130), "{left:#?}");
    assert!(left.stderr.contains("the run goes on"), "{left:#?}");

    let watched = cluster.run(&["watch", run, "--output", "results"]);
    assert_eq!(watched.code, Some(0), "{watched:#?}");
    let folder = watched.stdout.lines().last().unwrap();
    assert_eq!(folder, format!("results/{run}"));
    assert!(cluster.home().path().join(folder).join("report.json").is_file());
}

#[test]
fn ctrl_c_detaches_and_cancel_ends() {
    let cluster = two_workers();
    let evaluation = small_evaluation(cluster.home(), IMAGES, "[auto]");
    let submit = cluster.submit(&evaluation, &[]);
    cluster.wait_for_the_middle();
    assert!(signal(i32::try_from(submit.id()).unwrap(), Signal::SIGINT));
    let left = outcome(submit);
    assert_eq!(left.code, Some(130), "{left:#?}");
    assert!(left.stderr.contains("the run goes on"), "{left:#?}");
    assert!(left.stderr.contains("orchestrator cancel"), "{left:#?}");
    assert_eq!(cluster.json(&["status", "last"])["state"], "running");

    let watch = cluster.client(&["watch", "last"]);
    let cancelled = cluster.run(&["cancel", "last"]);
    assert_eq!(cancelled.code, Some(0), "{cancelled:#?}");
    let watched = outcome(watch);
    assert_eq!(watched.code, Some(130), "{watched:#?}");
    let status = cluster.json(&["status", "last"]);
    assert_eq!(status["state"], "cancelled");
    assert_eq!(status["attempts"].as_array().unwrap().len(), 0);
    let again = cluster.run(&["cancel", "last"]);
    assert!(again.stderr.contains("has ended already: cancelled"), "{again:#?}");

    let resumed = cluster.run(&["resume", "last", "--json"]);
    assert_eq!(resumed.code, Some(0), "{resumed:#?}");
}

#[test]
fn an_unreachable_coordinator_is_exit_6_within_five_seconds() {
    let home = Home::default();
    let evaluation = small_evaluation(&home, 4, "[auto]");
    let path = evaluation.to_str().unwrap();
    // A port that nobody listens on, and one where whoever listens never answers.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = [closed, mute.local_addr().unwrap().to_string()];
    for address in &addresses {
        let url = format!("http://{address}");
        for verb in [&["submit", path][..], &["runs"], &["watch", "last"], &["nodes"]] {
            let begun = Instant::now();
            let outcome = home.run(&[verb, &["--coordinator", &url]].concat());
            assert_eq!(outcome.code, Some(6), "{outcome:#?}");
            assert!(outcome.stderr.contains(&url), "{outcome:#?}");
            assert!(begun.elapsed() < Duration::from_secs(6), "{verb:?} {address}");
        }
    }
}

#[test]
fn a_worker_reads_inside_its_data_roots_only() {
    let mut cluster = Cluster::start(Setup::default());
    let home = cluster.home().path().to_owned();
    let evaluation = small_evaluation(cluster.home(), 40, "[auto]");
    let text = std::fs::read_to_string(&evaluation).unwrap();
    let model = orchestrator_tests::data().join("models/tiny-clip");
    let named = text.replace(model.to_str().unwrap(), "data:models/tiny-clip");
    let named = cluster.home().write("named.yaml", named);

    cluster.start_bare_worker("bare", &[]);
    let refused = cluster.run(&["submit", evaluation.to_str().unwrap()]);
    assert_eq!(refused.code, Some(4), "{refused:#?}");
    assert!(refused.stderr.contains("--data-root NAME=DIR"), "{refused:#?}");
    cluster.terminate_worker("bare");

    let only_home = format!("home={}", home.display());
    cluster.start_bare_worker("half", &["--data-root", &only_home]);
    let outside = cluster.run(&["submit", evaluation.to_str().unwrap()]);
    assert_eq!(outside.code, Some(4), "{outside:#?}");
    assert!(outside.stderr.contains("is in none of this worker's data roots"), "{outside:#?}");
    std::os::unix::fs::symlink(&model, home.join("link")).unwrap();
    let linked = text.replace(model.to_str().unwrap(), "link");
    let linked = cluster.home().write("linked.yaml", linked);
    let left = cluster.run(&["submit", linked.to_str().unwrap()]);
    assert_eq!(left.code, Some(4), "{left:#?}");
    assert!(left.stderr.contains("leaves its data root"), "{left:#?}");
    cluster.terminate_worker("half");

    cluster.start_worker("whole");
    let unknown = cluster.run(&["submit", named.to_str().unwrap()]);
    assert_eq!(unknown.code, Some(3), "{unknown:#?}");
    let root = format!("data={}", orchestrator_tests::data().display());
    let arguments = ["submit", named.to_str().unwrap(), "--data-root", &root];
    let good = cluster.run(&arguments);
    assert_eq!(good.code, Some(0), "{good:#?}");
}

#[test]
fn pictures_that_a_captions_file_names_are_held_to_the_data_roots() {
    let mut cluster = Cluster::start(Setup::default());
    // The captions file lies at home and names its pictures by their full paths.
    let evaluation = small_evaluation(cluster.home(), 40, "[auto]");
    let models = format!("models={}", orchestrator_tests::data().join("models").display());
    let home = format!("home={}", cluster.home().path().display());
    let roots = ["--data-root", &models, "--data-root", &home];
    cluster.start_bare_worker("half", &roots);
    let refused = cluster.run(&["submit", evaluation.to_str().unwrap()]);
    assert_eq!(refused.code, Some(4), "{refused:#?}");
    assert!(refused.stderr.contains("is in none of this worker's data roots"), "{refused:#?}");
    assert!(refused.stderr.contains("fluent/"), "the picture is named: {refused:#?}");
}

#[test]
fn services_stop_cleanly_and_refuse_each_other_by_name() {
    let mut cluster = two_workers();
    // Two coordinators on one store.
    let state = cluster.state();
    let arguments = ["coordinator", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--state"];
    let second = cluster.home().run(&[&arguments[..], &[state.to_str().unwrap()]].concat());
    assert_eq!(second.code, Some(1), "{second:#?}");
    assert!(second.stderr.contains("in use"), "{second:#?}");
    // Two workers of one name on one host.
    let url = cluster.url();
    let twin = cluster.home().run(&["worker", "--coordinator", &url, "--name", "a"]);
    assert_eq!(twin.code, Some(2), "{twin:#?}");
    assert!(twin.stderr.contains("in use by another worker"), "{twin:#?}");
    // A worker without its coordinator.
    let nobody =
        cluster.home().run(&["worker", "--coordinator", "http://127.0.0.1:1", "--name", "c"]);
    assert_eq!(nobody.code, Some(6), "{nobody:#?}");

    let executors = cluster.executors("a");
    assert_eq!(executors.len(), 1);
    assert_eq!(cluster.terminate_worker("a"), Some(0));
    wait_until("the executor's end", || !orchestrator_tests::cluster::is_alive(executors[0]));
    assert_eq!(cluster.terminate_coordinator(), Some(0));
    assert!(cluster.log("coordinator").contains("goes on when the coordinator is started again"));
}

#[test]
fn plaintext_beyond_this_machine_needs_a_word() {
    let home = Home::default();
    let state = home.path().join("state-of-coordinator");
    let arguments = ["coordinator", "--listen", "0.0.0.0:0", "--state", state.to_str().unwrap()];
    let refused = home.run(&arguments);
    assert_eq!(refused.code, Some(2), "{refused:#?}");
    assert!(refused.stderr.contains("--insecure-plaintext"), "{refused:#?}");
    assert!(refused.stderr.contains("--tls DIR"), "{refused:#?}");
    let wrong = home.write("wrong.yaml", "lissten: 127.0.0.1:0\n");
    let config = home.run(&["coordinator", "--config", wrong.to_str().unwrap()]);
    assert_eq!(config.code, Some(2), "{config:#?}");
    assert!(config.stderr.contains("lissten"), "{config:#?}");
}

#[test]
fn an_embedded_run_is_watched_and_cancelled_from_another_terminal() {
    let home = Home::default();
    let evaluation = small_evaluation(&home, IMAGES, "[auto]");
    let submit = home.start(&["submit", evaluation.to_str().unwrap()]);
    wait_until("the run", || {
        let status = home.run(&["status", "last", "--json"]);
        status.code == Some(0) && status.stdout.contains("\"running\"")
    });
    let watch = home.start(&["watch", "last"]);
    let cancelled = home.run(&["cancel", "last"]);
    assert_eq!(cancelled.code, Some(0), "{cancelled:#?}");
    assert_eq!(outcome(submit).code, Some(130));
    assert_eq!(outcome(watch).code, Some(130));
    let logs = home.run(&["logs", "last"]);
    assert!(logs.stdout.lines().last().unwrap().ends_with("run is cancelled"), "{logs:#?}");
}

#[test]
fn json_of_submit_is_the_same_embedded_and_on_a_cluster_and_logs_are_json_too() {
    let json = vec!["--log-format".to_owned(), "json".to_owned()];
    let setup = Setup { coordinator: json.clone(), worker: json, ..Setup::default() };
    let mut cluster = Cluster::start(setup);
    cluster.start_worker_with("a", &["-v"]);
    let evaluation = small_evaluation(cluster.home(), 40, "[auto]");
    let ours = document(cluster.submit(&evaluation, &[]), 0);
    let embedded = cluster.home().submit(&evaluation, &[], 0);
    let keys = |document: &Value| -> Vec<String> {
        document.as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(keys(&ours), keys(&embedded));

    let logged = |name: &str| -> Vec<Value> {
        let log = cluster.log(name);
        let lines = log.lines().filter(|line| line.starts_with('{'));
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let run = ours["run"].as_str().unwrap();
    let ended = |line: &Value| line["run"] == run && line["state"] == "complete";
    assert!(logged("coordinator").iter().any(ended), "{}", cluster.log("coordinator"));
    let fields = ["run", "unit", "token", "slice"];
    let attempt = |line: &Value| fields.iter().all(|field| !line["span"][field].is_null());
    assert!(logged("a").iter().any(attempt), "{}", cluster.log("a"));
}

#[test]
fn a_setting_comes_from_the_flag_then_the_environment_then_the_file() {
    let home = Home::default();
    let file = home.write("coordinator.yaml", "listen: from-file\n");
    // None of these is an address, and the refusal names the one that was used.
    let used = |flag: &[&str], variable: Option<&str>| {
        let mut command = home.command(&["coordinator", "--config", file.to_str().unwrap()]);
        command.args(flag).envs(variable.map(|value| ("ORCHESTRATOR_LISTEN", value)));
        let outcome = Outcome::of(command.output().unwrap());
        assert_eq!(outcome.code, Some(2), "{outcome:#?}");
        let said = ["from-flag", "from-environment", "from-file"];
        said.into_iter().find(|said| outcome.stderr.contains(said)).map(str::to_owned)
    };
    let flag = ["--listen", "from-flag"];
    assert_eq!(used(&flag, Some("from-environment")).as_deref(), Some("from-flag"));
    assert_eq!(used(&[], Some("from-environment")).as_deref(), Some("from-environment"));
    assert_eq!(used(&[], None).as_deref(), Some("from-file"));
}
