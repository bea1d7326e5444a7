//! Results do not depend on who computes them: same bits for any slices, batch and order.

use std::{fs, path::Path};

use arrow_array::RecordBatch;
use orchestrator_tests::{Home, data, small_evaluation, task_metrics};
use serde_json::Value;

use crate::numbers::rows;

/// What must be equal: the metrics as text, and every prediction to the last bit of its scores.
type Results = (String, Vec<RecordBatch>);

fn results(home: &Home, evaluation: &Path, arguments: &[&str]) -> Results {
    let document = home.submit(evaluation, arguments, 0);
    let folder = home.path().join(document["folder"].as_str().unwrap());
    let without_run = |mut batch: RecordBatch| {
        batch.remove_column(batch.schema().index_of("run").unwrap());
        batch
    };
    let predictions = rows(&folder.join("predictions.parquet")).into_iter().map(without_run);
    (task_metrics(&document["report"]), predictions.collect())
}

#[test]
fn any_number_of_slices_gives_the_same_bits() {
    let home = Home::default();
    let evaluation = small_evaluation(&home, 600, "[auto]");
    let one = results(&home, &evaluation, &[]);
    assert!(one.1.iter().map(RecordBatch::num_rows).sum::<usize>() > 600);
    for slices in ["2", "3"] {
        let many = results(&home, &evaluation, &["--local-slices", slices]);
        assert!(one == many, "{slices} slices");
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
    let run = |more: &[&str]| results(&home, &file, &[&base[..], more].concat());
    let expected = run(&[]);
    for slices in ["2", "3"] {
        assert!(run(&["--local-slices", slices]) == expected, "{slices} slices");
    }
    for batch in ["[1]", "[7]", "[256]"] {
        let set = format!("sweep.batch={batch}");
        assert!(run(&["--set", &set]) == expected, "batch {batch}");
    }
}

/// More distinct texts than one unit encodes.
#[test]
fn slow_many_captions_are_cut_into_parts() {
    let home = Home::default();
    let image = data().join("edge/gray.jpg");
    let texts: Vec<String> = (0..18_000).map(|n| format!("drawing number {n}")).collect();
    let line = serde_json::json!({"image": image, "captions": texts});
    home.write("captions.jsonl", format!("{line}\n"));
    let model = data().join("models/tiny-clip");
    let evaluation = home.write(
        "eval.yaml",
        format!(
            "version: 1\nname: many\nmodels: [{{path: {}}}]\ndatasets: {{captions: {{format: \
             captions, path: captions.jsonl}}}}\ntasks: [{{retrieval: {{dataset: captions, \
             recall_at: [1], captions: all}}}}]\n",
            model.display()
        ),
    );
    let document = home.submit(&evaluation, &[], 0);
    let task = &document["report"]["trials"][0]["tasks"][0];
    assert_eq!(task["metrics"]["text_to_image_r1"], 1.0);
    assert_eq!(task["metrics"]["image_to_text_r1"], 1.0);
    let folder = home.path().join(document["folder"].as_str().unwrap());
    let plan = fs::read_to_string(folder.join("plan.json")).unwrap();
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let blocks = plan["units"].as_array().unwrap();
    let texts = blocks.iter().find(|block| block["first"]["work"]["kind"] == "encode_texts");
    assert_eq!(texts.unwrap()["count"], 2);
    let predictions = rows(&folder.join("predictions.parquet"));
    assert_eq!(predictions.iter().map(RecordBatch::num_rows).sum::<usize>(), 1 + 18_000);
}
