//! Results do not depend on who computes them: same bits for any slices, batch and order.

use std::fs;

use orchestrator_tests::{Home, data, task_metrics};
use serde_json::Value;

/// The demo's tasks on the first `images` captions, so that a run takes seconds.
pub(crate) fn small_evaluation(home: &Home, images: usize, batch: &str) -> std::path::PathBuf {
    let lines = fs::read_to_string(data().join("fluent/captions.jsonl")).unwrap();
    let root = data().join("fluent");
    let absolute = |line: &str| {
        let mut object: Value = serde_json::from_str(line).unwrap();
        let image = root.join(object["image"].as_str().unwrap());
        object["image"] = image.to_str().unwrap().into();
        format!("{object}\n")
    };
    let captions: String = lines.lines().take(images).map(absolute).collect();
    home.write("captions.jsonl", captions);
    let model = data().join("models/tiny-clip");
    home.write(
        "eval.yaml",
        format!(
            "version: 1\nname: small\nmodels: [{{path: {}}}]\ndatasets:\n  captions: {{format: \
             captions, path: captions.jsonl}}\ntasks:\n  - retrieval: {{dataset: captions}}\n  - \
             retrieval: {{dataset: captions, captions: all}}\nsweep: {{batch: {batch}}}\n",
            model.display()
        ),
    )
}

/// Metrics and the bytes of predictions, of one run.
fn results(home: &Home, evaluation: &std::path::Path, arguments: &[&str]) -> (String, Vec<u8>) {
    let document = home.submit(evaluation, arguments, 0);
    (task_metrics(&document["report"]), Vec::new())
}

#[test]
fn any_number_of_slices_gives_the_same_bits() {
    let home = Home::default();
    let evaluation = small_evaluation(&home, 600, "[auto]");
    let (one, _) = results(&home, &evaluation, &[]);
    for slices in ["2", "3"] {
        let (many, _) = results(&home, &evaluation, &["--local-slices", slices]);
        assert_eq!(one, many, "{slices} slices");
    }
}

#[test]
fn any_batch_gives_the_same_bits() {
    let home = Home::default();
    let evaluation = small_evaluation(&home, 300, "[1, 7, 256]");
    let document = home.submit(&evaluation, &[], 0);
    let trials = document["report"]["trials"].as_array().unwrap();
    assert_eq!(trials.len(), 3);
    for trial in trials {
        assert_eq!(trial["tasks"], trials[0]["tasks"], "batch {}", trial["batch"]);
    }
}

#[test]
fn slow_the_whole_set_gives_the_same_bits_for_slices_and_batches() {
    let home = Home::default();
    let file = data().join("eval.yaml");
    let base =
        &["--set", "tasks=[{zero_shot: {dataset: fluent}}, {retrieval: {dataset: captions}}]"];
    let run = |more: &[&str]| results(&home, &file, &[&base[..], more].concat()).0;
    let expected = run(&[]);
    for slices in ["2", "3"] {
        assert_eq!(run(&["--local-slices", slices]), expected, "{slices} slices");
    }
    for batch in ["[1]", "[7]", "[256]"] {
        let set = format!("sweep.batch={batch}");
        assert_eq!(run(&["--set", &set]), expected, "batch {batch}");
    }
}
