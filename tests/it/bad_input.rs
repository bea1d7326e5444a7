//! What a person gets wrong, and what the product says to that. Messages are snapshots.

use std::{fs, path::Path};

use orchestrator_tests::{Home, Outcome, data};
use serde_json::Value;

/// Replaces what differs from machine to machine.
fn stable(home: &Home, text: &str) -> String {
    text.replace(home.path().to_str().unwrap(), "HOME").replace(data().to_str().unwrap(), "DATA")
}

fn refusal(home: &Home, arguments: &[&str], code: i32) -> String {
    let outcome = home.run(arguments);
    assert_eq!(outcome.code, Some(code), "{outcome:#?}");
    assert_eq!(outcome.stdout, "", "data goes to stdout only when there is some");
    stable(home, &outcome.stderr)
}

fn evaluation(model: &str, dataset: &str, task: &str) -> String {
    format!(
        "version: 1\nname: test\nmodels:\n  - path: {model}\ndatasets:\n  set: {dataset}\ntasks:\n  - \
         {task}\n"
    )
}

fn tiny_clip() -> String {
    data().join("models/tiny-clip").display().to_string()
}

const ZERO_SHOT: &str = "zero_shot: { dataset: set, top_k: [1] }";

/// Copies a file of the test data into the home.
fn copy(home: &Home, from: &str, to: &str) {
    home.write(to, fs::read(data().join(from)).unwrap());
}

#[test]
fn every_mistake_in_the_file_is_named_at_once() {
    let home = Home::default();
    home.write(
        "eval.yaml",
        "version: 1\nname: test\nmodls:\n  - path: nowhere\ndatasets:\n  set: {format: imagefoldr, \
         path: images}\ntasks:\n  - zero_shot: {dataset: sett, top_k: [0]}\nmemory: {quota: 2}\n",
    );
    insta::assert_snapshot!(refusal(&home, &["check", "eval.yaml"], 3));
}

#[test]
fn missing_files_are_named() {
    let home = Home::default();
    insta::assert_snapshot!("no_evaluation", refusal(&home, &["submit", "eval.yaml"], 3));
    let dataset = "{format: imagefolder, path: nowhere, classes: none.json}";
    home.write("eval.yaml", evaluation("no-model", dataset, ZERO_SHOT));
    insta::assert_snapshot!("no_model_no_data", refusal(&home, &["check", "eval.yaml"], 3));
}

#[test]
fn a_class_list_that_disagrees_with_the_folders_is_refused() {
    let home = Home::default();
    copy(&home, "edge/gray.jpg", "images/cats/one.jpg");
    copy(&home, "edge/444.jpg", "images/dogs/two.jpg");
    home.write(
        "classes.json",
        r#"{"classes": [{"id": 0, "name": "cat", "label": "cat"}, {"id": 1, "name": "dogs", "label": "dog"}], "templates": ["a {}"]}"#,
    );
    let dataset = "{format: imagefolder, path: images, classes: classes.json}";
    home.write("eval.yaml", evaluation(&tiny_clip(), dataset, ZERO_SHOT));
    insta::assert_snapshot!(refusal(&home, &["check", "eval.yaml"], 3));
}

#[test]
fn an_empty_dataset_and_double_samples_are_refused() {
    let home = Home::default();
    fs::create_dir_all(home.path().join("images/cats")).unwrap();
    let dataset = "{format: imagefolder, path: images}";
    home.write("eval.yaml", evaluation(&tiny_clip(), dataset, ZERO_SHOT));
    insta::assert_snapshot!("empty", refusal(&home, &["submit", "eval.yaml"], 3));

    copy(&home, "edge/gray.jpg", "one.jpg");
    let line = r#"{"image": "one.jpg", "caption": "a drawing"}"#;
    home.write("captions.jsonl", format!("{line}\n{line}\n"));
    let dataset = "{format: captions, path: captions.jsonl}";
    home.write("eval.yaml", evaluation(&tiny_clip(), dataset, "retrieval: { dataset: set }"));
    insta::assert_snapshot!("twice", refusal(&home, &["submit", "eval.yaml"], 3));
}

/// A copy of the model in which one file is replaced.
fn model_with(home: &Home, file: &str, content: &[u8]) -> String {
    for entry in fs::read_dir(data().join("models/tiny-clip")).unwrap() {
        let entry = entry.unwrap();
        home.write(
            Path::new("model").join(entry.file_name()).to_str().unwrap(),
            fs::read(entry.path()).unwrap(),
        );
    }
    home.write(&format!("model/{file}"), content);
    let dataset = "{format: imagefolder, path: images}";
    copy(home, "edge/gray.jpg", "images/cats/one.jpg");
    home.write("eval.yaml", evaluation("model", dataset, ZERO_SHOT));
    refusal(home, &["check", "eval.yaml"], 3)
}

#[test]
fn broken_weights_are_refused() {
    let home = Home::default();
    let weights = fs::read(data().join("models/tiny-clip/model.safetensors")).unwrap();
    let cut = &weights[..weights.len() / 2];
    insta::assert_snapshot!("weights_cut", model_with(&home, "model.safetensors", cut));
    let hostile = [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat();
    insta::assert_snapshot!("weights_hostile", model_with(&home, "model.safetensors", &hostile));
    let pickle = b"PK\x03\x04archive/data.pkl";
    insta::assert_snapshot!("weights_pickle", model_with(&home, "model.safetensors", pickle));
}

#[test]
fn unknown_architectures_are_refused() {
    let home = Home::default();
    let config = br#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}"#;
    insta::assert_snapshot!(model_with(&home, "config.json", config));
}

#[test]
fn a_quota_that_nothing_fits_is_exit_code_5() {
    let home = Home::default();
    copy(&home, "edge/gray.jpg", "images/cats/one.jpg");
    let dataset = "{format: imagefolder, path: images}";
    home.write("eval.yaml", evaluation(&tiny_clip(), dataset, ZERO_SHOT));
    home.write(
        "inventory.json",
        r#"{"slices": [{"id": "small.0", "node": "small", "device": "cpu", "threads": 1, "memory": "1 MiB"}]}"#,
    );
    let arguments = ["plan", "eval.yaml", "--inventory", "inventory.json"];
    insta::assert_snapshot!(refusal(&home, &arguments, 5));
}

#[test]
fn an_evaluation_that_allows_too_little_memory_is_exit_code_5() {
    let home = Home::default();
    copy(&home, "edge/gray.jpg", "images/cats/one.jpg");
    let dataset = "{format: imagefolder, path: images}";
    home.write("eval.yaml", evaluation(&tiny_clip(), dataset, ZERO_SHOT));
    home.write(
        "inventory.json",
        r#"{"slices": [{"id": "host.0", "node": "host", "device": "cpu", "threads": 1, "memory": "1 GiB"}]}"#,
    );
    let quota = ["--set", "memory.quota=1 MiB"];
    let plan = [&["plan", "eval.yaml", "--inventory", "inventory.json"], &quota[..]].concat();
    insta::assert_snapshot!("quota_of_the_evaluation", refusal(&home, &plan, 5));
    let submit = refusal(&home, &[&["submit", "eval.yaml"], &quota[..]].concat(), 5);
    assert!(submit.contains("never fits"), "{submit}");
    assert!(
        submit.trim_end().ends_with("or leave it out to use what the slice offers"),
        "{submit}"
    );
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let home = Home::default();
    copy(&home, "edge/gray.jpg", "images/cats/one.jpg");
    let dataset = "{format: imagefolder, path: images}";
    home.write("eval.yaml", evaluation(&tiny_clip(), dataset, ZERO_SHOT));
    let both = ["submit", "eval.yaml", "--device", "GPU-1", "--local-slices", "2"];
    insta::assert_snapshot!("device_and_slices", refusal(&home, &both, 2));
    let unknown = home.run(&["submit", "eval.yaml", "--device", "cuda:0"]);
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.stderr.contains("`cuda:0` is not a device"), "{unknown:#?}");
}

/// Every odd file, as a dataset of its own.
fn edge_evaluation(home: &Home, policy: &str) {
    for entry in fs::read_dir(data().join("edge")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        copy(home, &format!("edge/{name}"), &format!("images/things/{name}"));
    }
    let dataset = "{format: imagefolder, path: images}";
    let text = evaluation(&tiny_clip(), dataset, ZERO_SHOT);
    home.write("eval.yaml", format!("{text}on_bad_sample: {policy}\n"));
}

#[test]
fn bad_images_are_quarantined_counted_and_named() {
    let home = Home::default();
    edge_evaluation(&home, "quarantine");
    let outcome = home.run(&["submit", "eval.yaml"]);
    assert_eq!(outcome.code, Some(4), "{outcome:#?}");
    let folder = outcome.stdout.lines().last().unwrap();
    let text = fs::read_to_string(home.path().join(folder).join("report.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["complete"], false);
    let samples = &report["trials"][0]["tasks"][0]["samples"];
    assert_eq!(*samples, serde_json::json!({"total": 21, "evaluated": 17, "quarantined": 4}));
    insta::assert_snapshot!(quarantine_lines(&home, &outcome));
}

fn quarantine_lines(home: &Home, outcome: &Outcome) -> String {
    let mut lines: Vec<&str> =
        outcome.stderr.lines().filter(|line| line.starts_with("quarantined")).collect();
    lines.sort_unstable();
    stable(home, &lines.join("\n"))
}

#[test]
fn a_bad_image_can_fail_the_run() {
    let home = Home::default();
    edge_evaluation(&home, "fail");
    let outcome = home.run(&["submit", "eval.yaml"]);
    assert_eq!(outcome.code, Some(4), "{outcome:#?}");
    let failure = outcome.stderr.lines().find(|line| line.contains("given up")).unwrap();
    assert!(failure.contains("BAD-"), "{failure}");
}
