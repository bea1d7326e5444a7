//! The whole set, ranked: the reference's embeddings, metrics and best classes.

use std::time::Instant;

use orchestrator_data::dataset::Manifest;
use orchestrator_proto::domain::{AssignedWork, DatasetSource, Direction, TextSet};
use orchestrator_tasks::{Partial, TaskKind};
use orchestrator_types::{CaptionChoice, Digest, Shard, shards};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::{
    bench::Bench,
    fixtures::{IMAGES, captions, encode_images, encode_texts, folder, ranking},
    reference::{floats, hex, json, rows, top_classes},
};

type Images = Vec<(Shard, Digest)>;

/// Ranks in shards, and merges; the last shard first.
async fn rank(
    bench: &Bench,
    dataset: &DatasetSource,
    direction: Direction,
    texts: (TextSet, Vec<Digest>),
    images: &Images,
    count: u32,
    kind: &TaskKind,
) -> (Partial, Vec<Value>) {
    let units: Vec<(Shard, Images)> = match direction {
        Direction::TextToImage => {
            shards(count, 2048).map(|shard| (shard, images.clone())).collect()
        }
        Direction::ImageToClass | Direction::ImageToText => {
            images.iter().map(|&(shard, digest)| (shard, vec![(shard, digest)])).collect()
        }
    };
    let (mut merged, mut lines) = (kind.empty(), Vec::new());
    for (queries, images) in units.into_iter().rev() {
        let work = ranking(dataset, direction, texts.clone(), images, queries);
        let result = bench.execute(AssignedWork::Rank(work)).await.unwrap();
        assert_eq!(result.rows, u64::from(queries.len()));
        merged = merged.merge(serde_json::from_str(&result.partial).unwrap()).unwrap();
        let blob = String::from_utf8(bench.blob(result.blob.digest)).unwrap();
        lines.extend(blob.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()));
    }
    (merged, lines)
}

#[tokio::test]
async fn slow_zero_shot_equals_the_reference() {
    let (fluent, manifest) = folder();
    let bench = Bench::start(2).await;
    let prompts = encode_texts(&bench, &fluent, TextSet::Prompts, 1).await;
    let started = Instant::now();
    let images = encode_images(&bench, &fluent, 64).await;
    println!("{:.0} images/s", f64::from(IMAGES) / started.elapsed().as_secs_f64());
    check_embeddings(&bench, &images);
    let kind = TaskKind::ZeroShot { top_k: vec![1, 5] };
    let texts = (TextSet::Prompts, prompts);
    let started = Instant::now();
    let (partial, lines) =
        rank(&bench, &fluent, Direction::ImageToClass, texts, &images, IMAGES, &kind).await;
    println!("zero-shot ranked in {:?}", started.elapsed());
    let metrics = kind.metrics(&partial).unwrap();
    let expected = &json("metrics.json")["fluent"]["zero_shot"];
    println!("{metrics:?}");
    close(metrics.get("acc1"), &expected["top1"], 0.00063);
    close(metrics.get("acc5"), &expected["top5"], 0.00063);
    check_best_classes(&manifest, &lines);
}

fn check_embeddings(bench: &Bench, images: &Images) {
    let expected = rows("image_embeds");
    let (mut least_cosine, mut largest) = (1.0_f64, 0.0_f32);
    for &(_, digest) in images {
        let bytes = bench.blob(digest);
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let ids: Vec<String> =
            serde_json::from_str(&header.metadata().as_ref().unwrap()["samples"]).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let rows = floats(tensors.tensor("embeddings").unwrap().data());
        for (id, row) in ids.iter().zip(rows.chunks_exact(256)) {
            let reference = &expected[hex(id)];
            let dot: f64 =
                row.iter().zip(reference).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            least_cosine = least_cosine.min(dot / (length(row) * length(reference)));
            let differences = row.iter().zip(reference).map(|(a, b)| (a - b).abs());
            largest = differences.fold(largest, f32::max);
        }
    }
    println!("least cosine {least_cosine:.9}, largest difference {largest:e}");
    assert!(least_cosine >= 0.99999 && largest <= 1e-4);
}

fn length(row: &[f32]) -> f64 {
    row.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt()
}

fn check_best_classes(manifest: &Manifest, lines: &[Value]) {
    let expected = top_classes();
    assert_eq!(lines.len(), expected.len());
    let equal = lines.iter().filter(|line| {
        let names = &expected[hex(line["sample"].as_str().unwrap())];
        let names = names.iter().map(|&class| manifest.classes()[class as usize].name.as_str());
        names.eq(line["top_ids"].as_array().unwrap()[..5].iter().map(|id| id.as_str().unwrap()))
    });
    let equal = equal.count();
    println!("{equal} of {} lists of five classes are equal", lines.len());
    assert!(equal as f64 >= 0.998 * lines.len() as f64, "{equal}");
}

#[tokio::test]
async fn slow_every_image_has_the_same_bits_for_any_threads_and_batch() {
    let (fluent, _) = folder();
    let expected = encode_images(&Bench::start(1).await, &fluent, 256).await;
    for (threads, batch) in [(2, 7), (3, 1)] {
        let images = encode_images(&Bench::start(threads).await, &fluent, batch).await;
        assert_eq!(images, expected, "{threads} threads, batch {batch}");
    }
}

#[tokio::test]
async fn slow_retrieval_equals_the_reference() {
    let (fluent, _) = captions();
    let bench = Bench::start(2).await;
    let images = encode_images(&bench, &fluent, 64).await;
    for (set, captions, count, reference) in [
        (TextSet::FirstCaptions, CaptionChoice::First, IMAGES, "retrieval_name"),
        (TextSet::AllCaptions, CaptionChoice::All, 5 * IMAGES, "retrieval_5_captions"),
    ] {
        let texts = (set, encode_texts(&bench, &fluent, set, 3).await);
        let kind = TaskKind::Retrieval { recall_at: vec![1, 5, 10], captions };
        let mut merged = kind.empty();
        for direction in [Direction::ImageToText, Direction::TextToImage] {
            let started = Instant::now();
            let (partial, lines) =
                rank(&bench, &fluent, direction, texts.clone(), &images, count, &kind).await;
            println!("{set:?} {direction:?} ranked in {:?}", started.elapsed());
            merged = merged.merge(partial).unwrap();
            check_names(direction, &lines);
        }
        let metrics = kind.metrics(&merged).unwrap();
        println!("{metrics:?}");
        for direction in ["image_to_text", "text_to_image"] {
            let expected = &json("metrics.json")["fluent"][reference][direction];
            for k in [1, 5, 10] {
                let name = format!("{direction}_r{k}");
                close(metrics.get(&name), &expected[format!("R@{k}")], 0.002);
            }
            let name = format!("{direction}_median_rank");
            close(metrics.get(&name), &expected["median_rank"], 0.5);
        }
    }
}

fn check_names(direction: Direction, lines: &[Value]) {
    let is_caption = |id: &Value| id.as_str().unwrap().contains(".jpg#");
    for line in lines {
        let texts_ask = direction == Direction::TextToImage;
        assert_eq!(is_caption(&line["sample"]), texts_ask, "{line}");
        assert_eq!(is_caption(&line["label"]), !texts_ask, "{line}");
        assert_eq!(is_caption(&line["top_ids"][0]), !texts_ask, "{line}");
        assert_eq!(line["top_ids"].as_array().unwrap().len(), 10, "{line}");
        let first = line["top_ids"][0] == line["label"];
        assert_eq!(line["correct"].as_bool().unwrap(), first, "{line}");
        assert_eq!(line["rank"].as_u64().unwrap() == 1, first, "{line}");
    }
}

fn close(found: Option<f64>, expected: &Value, margin: f64) {
    let (found, expected) = (found.unwrap(), expected.as_f64().unwrap());
    assert!((found - expected).abs() <= margin, "{found}, expected {expected}");
}
