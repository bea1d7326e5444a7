//! Verbs, help and streams.

use orchestrator_tests::{Home, data, small_evaluation};
use serde_json::Value;

fn stdout(home: &Home, arguments: &[&str]) -> String {
    let outcome = home.run(arguments);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    outcome.stdout
}

#[test]
fn help_teaches() {
    let home = Home::default();
    insta::assert_snapshot!("help", stdout(&home, &["--help"]));
    insta::assert_snapshot!("help_submit", stdout(&home, &["submit", "--help"]));
    insta::assert_snapshot!("help_profile", stdout(&home, &["profile", "--help"]));
    insta::assert_snapshot!("help_coordinator", stdout(&home, &["coordinator", "--help"]));
    insta::assert_snapshot!("help_worker", stdout(&home, &["worker", "--help"]));
}

#[test]
fn check_tells_what_it_found() {
    let home = Home::default();
    let file = data().join("eval.yaml");
    let text = stdout(&home, &["check", file.to_str().unwrap()]);
    insta::assert_snapshot!(text.replace(file.to_str().unwrap(), "eval.yaml"));
}

#[test]
fn the_example_at_the_root_is_good() {
    let home = Home::default();
    let file = data().join("../../eval.yaml");
    stdout(&home, &["check", file.to_str().unwrap()]);
}

#[test]
fn plan_shows_placement_bytes_and_reasons() {
    let home = Home::default();
    let slice = |number: u32| {
        format!(
            r#"{{"id": "host.{number}", "node": "host", "device": "cpu", "threads": 2, "memory": "2 GiB"}}"#
        )
    };
    home.write("inventory.json", format!(r#"{{"slices": [{}, {}]}}"#, slice(0), slice(1)));
    let file = data().join("eval.yaml");
    let arguments = ["plan", file.to_str().unwrap(), "--inventory", "inventory.json"];
    insta::assert_snapshot!(stdout(&home, &arguments));
    let json = stdout(&home, &[&arguments[..], &["--json"]].concat());
    let plan: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(plan["schema"], "orchestrator.plan/2");
}

#[test]
fn schema_and_completions_are_printed() {
    let home = Home::default();
    let schema: Value = serde_json::from_str(&stdout(&home, &["schema"])).unwrap();
    assert!(schema["properties"]["models"].is_object());
    for shell in ["bash", "zsh", "fish"] {
        assert!(stdout(&home, &["completion", shell]).contains("submit"), "{shell}");
    }
    assert!(stdout(&home, &["version"]).starts_with("orchestrator 0."));
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let home = Home::default();
    for arguments in [&["sumbit"][..], &["submit"], &["submit", "a", "--local-slices", "0"]] {
        let outcome = home.run(arguments);
        assert_eq!(outcome.code, Some(2), "{outcome:#?}");
    }
}

#[test]
fn a_run_can_be_looked_at_afterwards() {
    let home = Home::default();
    let evaluation = small_evaluation(&home, 40, "[auto]");
    let outcome = home.run(&["submit", evaluation.to_str().unwrap(), "--output", "results"]);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    let folder = outcome.stdout.lines().last().unwrap();
    let run = folder.strip_prefix("results/").unwrap();
    assert!(home.path().join(folder).join("report.json").is_file());

    let runs: Value = serde_json::from_str(&stdout(&home, &["runs", "--json"])).unwrap();
    assert_eq!(runs["runs"][0]["run"], run);
    assert_eq!(runs["runs"][0]["state"], "complete");
    assert!(stdout(&home, &["runs"]).contains(run));
    assert!(stdout(&home, &["status", run]).contains("complete"));
    let table = stdout(&home, &["report", "last"]);
    assert!(outcome.stdout.starts_with(&table), "the same table again");

    assert!(home.path().join(folder).join("memory.parquet").is_file());
    let nodes: Value = serde_json::from_str(&stdout(&home, &["nodes", "--json"])).unwrap();
    assert_eq!(nodes["schema"], "orchestrator.nodes/1");
    assert!(nodes["offers"][0]["ceiling_bytes"].as_u64().unwrap() > 0);
    assert_eq!(
        (&nodes["runs"][0]["run"], &nodes["runs"][0]["state"]),
        (&run.into(), &"complete".into())
    );
    assert!(stdout(&home, &["nodes"]).contains(run));

    let missing = home.run(&["status", "nonsense"]);
    assert_eq!(missing.code, Some(2));
    assert!(missing.stderr.contains("orchestrator runs"), "{missing:#?}");
}

#[test]
fn doctor_tells_what_works_and_changes_nothing() {
    let home = Home::default();
    let told: Value = serde_json::from_str(&stdout(&home, &["doctor", "--json"])).unwrap();
    assert_eq!(told["schema"], "orchestrator.doctor/1");
    assert_eq!(told["possible"], serde_json::json!(["submit", "worker", "coordinator"]));
    let executor = &told["facts"]["executor"]["answers"]["answer"];
    assert_eq!(executor["build"], told["facts"]["build"], "both say which build they are");
    assert_eq!(executor["libtorch"], "2.11.0");
    let text = stdout(&home, &["doctor"]);
    assert!(text.contains("works here: `submit`, `worker`, `coordinator`"), "{text}");
    assert!(!text.contains('\u{1b}'), "no colour where nobody looks");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn doctor_says_what_is_missing_and_what_moves_it() {
    let home = Home::default();
    let file = home.write("file", "not a folder");
    let mut command = home.command(&["doctor"]);
    command.env("ORCHESTRATOR_EXECUTOR", "/nowhere").env("XDG_CACHE_HOME", file.join("below"));
    let outcome = command.output().unwrap();
    let text = String::from_utf8(outcome.stdout).unwrap();
    assert_eq!(outcome.status.code(), Some(1), "{text}");
    assert!(
        text.contains("ORCHESTRATOR_EXECUTOR names /nowhere, which is not a program"),
        "{text}"
    );
    assert!(text.contains("→ put it on a volume that can be written to"), "{text}");
    assert!(text.contains("works here: `coordinator`; does not: `submit`, `worker`"), "{text}");
    let outcome =
        home.command(&["doctor", "--coordinator", "http://127.0.0.1:9"]).output().unwrap();
    assert_eq!(outcome.status.code(), Some(6), "nobody answers there");
}

#[test]
fn texts_are_encoded_once_and_then_come_from_the_cache() {
    let home = Home::default();
    let evaluation = small_evaluation(&home, 40, "[auto]");
    let cached = |document: &Value| {
        let folder = home.path().join(document["folder"].as_str().unwrap());
        let events = std::fs::read_to_string(folder.join("events.jsonl")).unwrap();
        events.matches(r#""cached":true"#).count()
    };
    let first = home.submit(&evaluation, &[], 0);
    let second = home.submit(&evaluation, &[], 0);
    assert_eq!((cached(&first), cached(&second)), (0, 2), "both sets of texts");
    assert_eq!(first["report"]["trials"][0]["tasks"], second["report"]["trials"][0]["tasks"]);
}
