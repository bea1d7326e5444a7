//! The one oracle: what the reference implementation computes from the same files.

use std::{collections::BTreeMap, fs, fs::File, path::Path};

use arrow_array::{
    RecordBatch,
    cast::AsArray as _,
    types::{Float32Type, UInt32Type},
};
use orchestrator_tests::{Home, data, metric, reference};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use safetensors::SafeTensors;
use serde_json::Value;

/// One image of 1,593.
const ONE_IMAGE: f64 = 1.0 / 1593.0 + 1e-9;

#[test]
fn slow_the_demo_gives_the_numbers_of_the_reference() {
    let home = Home::default();
    let document = home.submit(&data().join("eval.yaml"), &["--embeddings"], 0);
    let report = &document["report"];
    assert_eq!(report["complete"], true);
    let tasks = report["trials"][0]["tasks"].as_array().unwrap();
    zero_shot(&tasks[0]);
    retrieval(&tasks[1], &reference()["retrieval_name"]);
    retrieval(&tasks[2], &reference()["retrieval_5_captions"]);

    let folder = home.path().join(document["folder"].as_str().unwrap());
    for name in ["report.json", "report.md", "plan.json", "eval.yaml", "events.jsonl"] {
        assert!(folder.join(name).metadata().unwrap().len() > 0, "{name} is empty");
    }
    predictions(&folder);
    embeddings(&folder);
}

fn zero_shot(task: &Value) {
    let expected = &reference()["zero_shot"];
    for (ours, theirs) in [("acc1", "top1"), ("acc5", "top5")] {
        let difference = (metric(task, ours) - expected[theirs].as_f64().unwrap()).abs();
        assert!(difference <= ONE_IMAGE, "{ours} is off by {difference}");
    }
    assert!(metric(task, "mean_per_class_recall") > 0.5);
    assert_eq!(task["samples"]["evaluated"], 1593);
}

fn retrieval(task: &Value, expected: &Value) {
    for direction in ["image_to_text", "text_to_image"] {
        for k in [1, 5, 10] {
            let ours = metric(task, &format!("{direction}_r{k}"));
            let theirs = expected[direction][format!("R@{k}")].as_f64().unwrap();
            assert!((ours - theirs).abs() <= 0.002, "{direction}_r{k}: {ours}, not {theirs}");
        }
        let ours = metric(task, &format!("{direction}_median_rank"));
        let theirs = expected[direction]["median_rank"].as_f64().unwrap();
        assert!((ours - theirs).abs() <= 0.5, "{direction}_median_rank: {ours}, not {theirs}");
    }
    let (ours, theirs) = ("text_to_image_r5", "image_retrieval_recall@5");
    assert_eq!(task["metrics"][ours], task["metrics"][theirs], "CLIP_benchmark's second keys");
}

/// Every row of a Parquet file.
pub(crate) fn rows(path: &Path) -> Vec<RecordBatch> {
    let file = File::open(path).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    reader.map(Result::unwrap).collect()
}

/// The hexadecimal code point names that the reference calls its images by.
fn stem(sample: &str) -> &str {
    sample.rsplit('/').next().unwrap().trim_end_matches(".jpg")
}

fn test_order() -> Vec<String> {
    let text = fs::read_to_string(data().join("reference/tiny-clip/reference.json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(document["test_order"].clone()).unwrap()
}

/// The top-5 classes of each image, by name, as the reference has them.
fn reference_top5() -> BTreeMap<String, Vec<String>> {
    let bytes = fs::read(data().join("reference/tiny-clip/embeddings.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let top5 = tensors.tensor("class_top5").unwrap();
    let classes = fs::read_to_string(data().join("fluent/classes.json")).unwrap();
    let classes: Value = serde_json::from_str(&classes).unwrap();
    let ids: Vec<usize> = top5
        .data()
        .chunks_exact(4)
        .map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap()).try_into().unwrap())
        .collect();
    let name = |id: &usize| classes["classes"][*id]["name"].as_str().unwrap().to_owned();
    let lists = ids.chunks_exact(5).map(|list| list.iter().map(name).collect());
    test_order().into_iter().zip(lists).collect()
}

fn predictions(folder: &Path) {
    let expected = reference_top5();
    let (mut images, mut equal, mut total) = (0, 0, 0);
    for batch in rows(&folder.join("predictions.parquet")) {
        total += batch.num_rows();
        let column = |name: &str| batch.column_by_name(name).unwrap();
        let (task, sample) =
            (column("task").as_string::<i32>(), column("sample_id").as_string::<i32>());
        let (top, rank) =
            (column("top_ids").as_list::<i32>(), column("rank").as_primitive::<UInt32Type>());
        for row in (0..batch.num_rows()).filter(|row| task.value(*row) == "zero_shot") {
            let list = top.value(row);
            let list: Vec<&str> = list.as_string::<i32>().iter().flatten().collect();
            images += 1;
            equal += usize::from(list == expected[stem(sample.value(row))]);
            assert!(rank.value(row) >= 1);
        }
    }
    assert_eq!(images, 1593, "each image once");
    // Zero-shot, then both directions of first captions and of all five.
    assert_eq!(total, 1593 + (1593 + 1593) + (1593 + 5 * 1593));
    let share = f64::from(u32::try_from(equal).unwrap()) / 1593.0;
    assert!(share >= 0.998, "the top-5 lists of only {equal} images are equal");
}

fn embeddings(folder: &Path) {
    let bytes = fs::read(data().join("reference/tiny-clip/embeddings.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let expected: Vec<f32> = tensors
        .tensor("image_embeds")
        .unwrap()
        .data()
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    let expected: BTreeMap<String, &[f32]> =
        test_order().into_iter().zip(expected.chunks_exact(256)).collect();
    let (mut worst, mut lowest, mut seen) = (0.0_f32, 1.0_f32, 0);
    for batch in rows(&folder.join("embeddings.parquet")) {
        let column = |name: &str| batch.column_by_name(name).unwrap();
        let (kind, dataset) =
            (column("kind").as_string::<i32>(), column("dataset").as_string::<i32>());
        let (sample, vectors) =
            (column("sample_id").as_string::<i32>(), column("embedding").as_fixed_size_list());
        for row in 0..batch.num_rows() {
            if kind.value(row) != "image" || dataset.value(row) != "fluent" {
                continue;
            }
            let vector = vectors.value(row);
            let (ours, theirs) =
                (vector.as_primitive::<Float32Type>().values(), expected[stem(sample.value(row))]);
            assert_eq!(ours.len(), 256);
            let pairs = || ours.iter().zip(theirs);
            worst = pairs().map(|(a, b)| (a - b).abs()).fold(worst, f32::max);
            let dot: f32 = pairs().map(|(a, b)| a * b).sum();
            lowest = lowest.min(dot);
            seen += 1;
        }
    }
    assert_eq!(seen, 1593);
    assert!(worst <= 1e-4, "largest difference {worst}");
    assert!(lowest >= 0.99999, "lowest cosine {lowest}");
}
