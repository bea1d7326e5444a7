//! Interruptions: Ctrl-C, a killed executor, a killed everything. Results are as if undisturbed.

use std::{
    process::Child,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use orchestrator_tests::{Home, Outcome, child_processes, small_evaluation, task_metrics};
use serde_json::Value;

/// Five shards: one is committed and others are open for seconds, on any machine.
const IMAGES: usize = 1200;

/// The run's state as `status` tells it; none before it is stored.
fn status(home: &Home) -> Option<Value> {
    let outcome = home.run(&["status", "last", "--json"]);
    (outcome.code == Some(0)).then(|| serde_json::from_str(&outcome.stdout).unwrap())
}

fn committed_images(status: &Value) -> u64 {
    status["components"]["vision"]["committed"].as_u64().unwrap()
}

/// Waits until some image shard is committed and others are open.
fn wait_for_the_middle(home: &Home) {
    let deadline = Instant::now() + Duration::from_mins(2);
    loop {
        if let Some(status) = status(home) {
            let committed = committed_images(&status);
            assert_ne!(status["state"], "complete", "the run ended before it was disturbed");
            if committed >= 1 {
                return;
            }
        }
        assert!(Instant::now() < deadline, "no shard was committed in time");
        thread::sleep(Duration::from_millis(50));
    }
}

fn undisturbed(home: &Home, evaluation: &std::path::Path) -> String {
    task_metrics(&home.submit(evaluation, &[], 0)["report"])
}

fn pid(id: impl TryInto<i32>) -> Pid {
    let Ok(id) = id.try_into() else { panic!("not a process id") };
    Pid::from_raw(id)
}

fn wait(child: Child) -> Outcome {
    Outcome::of(child.wait_with_output().unwrap())
}

fn assert_gone(processes: &[i32]) {
    let deadline = Instant::now() + Duration::from_secs(10);
    for id in processes {
        while kill(pid(*id), None).is_ok() {
            assert!(Instant::now() < deadline, "process {id} is still there");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn ctrl_c_stops_cleanly_and_resume_repeats_nothing() {
    let home = Home::default();
    let evaluation = small_evaluation(&home, IMAGES, "[auto]");
    let child = home.start(&["submit", evaluation.to_str().unwrap()]);
    wait_for_the_middle(&home);
    let executors = child_processes(child.id());
    assert!(!executors.is_empty(), "no executor to leave behind");
    kill(pid(child.id()), Signal::SIGINT).unwrap();
    let outcome = wait(child);
    assert_eq!(outcome.code, Some(130), "{outcome:#?}");
    assert_gone(&executors);

    let interrupted = status(&home).unwrap();
    assert_eq!(interrupted["state"], "interrupted");
    let run = interrupted["run"].as_str().unwrap();
    assert!(outcome.stderr.contains(&format!("orchestrator resume {run}")), "{outcome:#?}");
    let kept = committed_images(&interrupted);

    let resumed = home.run(&["resume", run, "--json", "--local-slices", "2"]);
    assert_eq!(resumed.code, Some(0), "{resumed:#?}");
    let document: Value = serde_json::from_str(&resumed.stdout).unwrap();
    let events = std::fs::read_to_string(
        home.path().join(document["folder"].as_str().unwrap()).join("events.jsonl"),
    )
    .unwrap();
    let mut committed: Vec<u64> = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["event"]["kind"] == "unit_committed")
        .map(|event| event["event"]["unit"].as_u64().unwrap())
        .collect();
    let total = committed.len();
    committed.sort_unstable();
    committed.dedup();
    assert_eq!(committed.len(), total, "a committed unit was computed again");
    assert!(kept >= 1);
    assert_eq!(task_metrics(&document["report"]), undisturbed(&home, &evaluation));
}

#[test]
fn a_killed_executor_costs_time_and_nothing_else() {
    let home = Home::default();
    let evaluation = small_evaluation(&home, IMAGES, "[auto]");
    let child = home.start(&["submit", evaluation.to_str().unwrap(), "--json"]);
    wait_for_the_middle(&home);
    let executors = child_processes(child.id());
    for executor in &executors {
        kill(pid(*executor), Signal::SIGKILL).unwrap();
    }
    let outcome = wait(child);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    assert!(outcome.stderr.contains("will be retried"), "the kill hit nothing: {outcome:#?}");
    let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(task_metrics(&document["report"]), undisturbed(&home, &evaluation));
}

#[test]
fn a_run_survives_the_death_of_everything() {
    let home = Home::default();
    let evaluation = small_evaluation(&home, IMAGES, "[auto]");
    let mut child = home.start(&["submit", evaluation.to_str().unwrap()]);
    wait_for_the_middle(&home);
    let executors = child_processes(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_gone(&executors);
    assert_eq!(status(&home).unwrap()["state"], "interrupted");
    let resumed = home.run(&["resume", "last", "--json"]);
    assert_eq!(resumed.code, Some(0), "{resumed:#?}");
    let document: Value = serde_json::from_str(&resumed.stdout).unwrap();
    assert_eq!(document["report"]["complete"], true);
    assert_eq!(task_metrics(&document["report"]), undisturbed(&home, &evaluation));
}

#[test]
fn a_run_that_ended_can_be_resumed_and_ends_again() {
    let home = Home::default();
    let evaluation = small_evaluation(&home, 40, "[auto]");
    let first = home.submit(&evaluation, &[], 0);
    let again = home.run(&["resume", "last", "--json", "--local-slices", "2"]);
    assert_eq!(again.code, Some(0), "{again:#?}");
    let again: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(task_metrics(&again["report"]), task_metrics(&first["report"]));

    // A file that cannot be decoded fails its unit; nothing heals it, and nothing hides it.
    home.write("bad/things/bad.jpg", b"not a picture");
    let model = orchestrator_tests::data().join("models/tiny-clip");
    let failing = home.write(
        "failing.yaml",
        format!(
            "version: 1\nname: failing\nmodels: [{{path: {}}}]\ndatasets: {{set: {{format: \
             imagefolder, path: bad}}}}\ntasks: [{{zero_shot: {{dataset: set, top_k: \
             [1]}}}}]\non_bad_sample: fail\n",
            model.display()
        ),
    );
    let failed = home.run(&["submit", failing.to_str().unwrap()]);
    assert_eq!(failed.code, Some(4), "{failed:#?}");
    let resumed = home.run(&["resume", "last"]);
    assert_eq!(resumed.code, Some(4), "{resumed:#?}");
    assert!(resumed.stderr.contains("bad.jpg"), "{resumed:#?}");
    assert_eq!(status(&home).unwrap()["state"], "incomplete");
}
