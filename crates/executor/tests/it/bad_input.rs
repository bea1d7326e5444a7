//! Input that is wrong: set aside or refused, in words, and the process goes on.

use std::{fs, path::Path};

use orchestrator_proto::domain::{
    AssignedWork, DatasetSource, Direction, EncodeImages, ModelSource, SourceKind, TextSet,
};
use orchestrator_types::{Digest, FailureClass, Precision, Shard};
use safetensors::SafeTensors;

use crate::{
    bench::Bench,
    fixtures::{data, dataset, folder, images, model, ranking, texts},
};

pub(crate) fn edge(root: &Path) -> DatasetSource {
    let class = root.join("edge");
    fs::create_dir(&class).unwrap();
    for entry in fs::read_dir(data().join("edge")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), class.join(entry.file_name())).unwrap();
    }
    dataset(SourceKind::ImageFolder { root: root.to_owned(), classes: None }).0
}

#[tokio::test]
async fn bad_samples_are_set_aside_and_change_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let edge = edge(root.path());
    let bench = Bench::start(2).await;
    let work = images(&edge, 0, 21);
    let result = bench.execute(AssignedWork::EncodeImages(work.clone())).await.unwrap();
    let bad: Vec<(u32, &str, &str)> = result
        .quarantined
        .iter()
        .map(|bad| (bad.position, bad.sample.0.as_str(), bad.reason.as_str()))
        .collect();
    let names: Vec<&str> = bad.iter().map(|bad| bad.1).collect();
    assert_eq!(
        names,
        [
            "edge/BAD-empty.jpg",
            "edge/BAD-header-only.png",
            "edge/BAD-text.jpg",
            "edge/BAD-truncated.jpg"
        ],
        "{bad:?}"
    );
    assert!(bad.iter().all(|(_, _, reason)| !reason.is_empty()), "{bad:?}");
    let blob = bench.blob(result.blob.digest);
    let tensors = SafeTensors::deserialize(&blob).unwrap();
    let valid = tensors.tensor("valid").unwrap().data();
    let rows = tensors.tensor("embeddings").unwrap().data().chunks_exact(4 * 256);
    for (position, (row, &valid)) in (0..).zip(rows.zip(valid)) {
        let is_bad = bad.iter().any(|bad| bad.0 == position);
        assert_eq!(valid == 0, is_bad);
        assert_eq!(row.iter().all(|&byte| byte == 0), is_bad);
    }
    // A good neighbour has the same bits beside a file that became bad.
    fs::write(root.path().join("edge/cmyk.jpg"), vec![0xff; file_size(root.path())]).unwrap();
    let worse = bench.execute(AssignedWork::EncodeImages(work)).await.unwrap();
    assert_eq!(worse.quarantined.len(), 5);
    assert_ne!(worse.samples, result.samples);
    let blob = bench.blob(worse.blob.digest);
    let after = SafeTensors::deserialize(&blob).unwrap();
    let after = after.tensor("embeddings").unwrap().data();
    let before = tensors.tensor("embeddings").unwrap().data();
    let changed = before.chunks_exact(4 * 256).zip(after.chunks_exact(4 * 256));
    assert_eq!(changed.filter(|(before, after)| before != after).count(), 1);
}

fn file_size(root: &Path) -> usize {
    usize::try_from(fs::metadata(root.join("edge/cmyk.jpg")).unwrap().len()).unwrap()
}

#[tokio::test]
async fn a_bad_sample_fails_the_unit_where_it_must_not_be_set_aside() {
    let root = tempfile::tempdir().unwrap();
    let edge = edge(root.path());
    let bench = Bench::start(2).await;
    let work = EncodeImages { quarantine_bad_samples: false, ..images(&edge, 0, 4) };
    let (class, message) = bench.execute(AssignedWork::EncodeImages(work)).await.unwrap_err();
    assert_eq!(class, FailureClass::Invalid);
    assert!(message.starts_with("sample edge/BAD-"), "{message}");
    let good = bench.execute(AssignedWork::EncodeImages(images(&edge, 4, 8))).await;
    assert!(good.is_ok(), "the process goes on");
}

#[tokio::test]
async fn other_bytes_than_planned_are_refused_with_both_digests() {
    let (fluent, _) = folder();
    let bench = Bench::start(1).await;
    let other = Digest::of(b"other");
    let mut work = images(&fluent, 0, 4);
    work.model.weights = other;
    let (class, message) =
        bench.execute(AssignedWork::EncodeImages(work.clone())).await.unwrap_err();
    assert_eq!(class, FailureClass::Invalid);
    assert!(message.contains(&other.to_string()), "{message}");
    assert!(message.contains(&model().weights.to_string()), "{message}");
    work.model = model();
    work.dataset.manifest = other;
    let (class, message) = bench.execute(AssignedWork::EncodeImages(work)).await.unwrap_err();
    assert_eq!(class, FailureClass::Invalid);
    assert!(message.contains(&other.to_string()), "{message}");
    assert!(message.contains(&fluent.manifest.to_string()), "{message}");
}

#[tokio::test]
async fn what_is_not_there_or_not_built_is_named() {
    let (fluent, manifest) = folder();
    let bench = Bench::start(1).await;
    let mut refused = Vec::new();
    let absent = ModelSource { folder: "/nowhere/model".into(), ..model() };
    let coarse = ModelSource { precision: Precision::Int8, ..model() };
    for model in [absent, coarse] {
        let work = EncodeImages { model, ..images(&fluent, 0, 4) };
        refused.push(bench.execute(AssignedWork::EncodeImages(work)).await.unwrap_err());
    }
    let beyond = images(&fluent, 1592, 1600);
    refused.push(bench.execute(AssignedWork::EncodeImages(beyond)).await.unwrap_err());
    let prompts = bench.execute(AssignedWork::EncodeTexts(texts(&fluent, TextSet::Prompts)));
    let prompts = prompts.await.unwrap().blob.digest;
    let queries = Shard { start: 0, end: 4 };
    let rank = ranking(
        &fluent,
        Direction::ImageToText,
        (TextSet::AllCaptions, vec![prompts]),
        vec![],
        queries,
    );
    refused.push(bench.execute(AssignedWork::Rank(rank)).await.unwrap_err());
    for (class, message) in &refused {
        assert_eq!(*class, FailureClass::Invalid, "{message}");
    }
    let messages: Vec<&str> = refused.iter().map(|(_, message)| message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "/nowhere/model: no such model folder",
            "precision int8 is not built yet; use fp32, fp16 or bf16",
            "shard 1592..1600 lies outside of a dataset of 1593 samples",
            &format!(
                "cannot rank: embeddings of {} texts, the dataset here has 0; submit again if its \
                 class list or captions have changed",
                manifest.prompts().len()
            ),
        ]
    );
}

#[tokio::test]
async fn a_damaged_blob_is_found_before_it_is_ranked() {
    let (fluent, _) = folder();
    let bench = Bench::start(1).await;
    let prompts = bench.execute(AssignedWork::EncodeTexts(texts(&fluent, TextSet::Prompts)));
    let prompts = prompts.await.unwrap().blob.digest;
    let shard = Shard { start: 0, end: 4 };
    let images = bench.execute(AssignedWork::EncodeImages(images(&fluent, 0, 4))).await;
    let images = images.unwrap().blob.digest;
    let mut bytes = bench.blob(images);
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(bench.blob_path(images), bytes).unwrap();
    let rank = ranking(
        &fluent,
        Direction::ImageToClass,
        (TextSet::Prompts, vec![prompts]),
        vec![(shard, images)],
        shard,
    );
    let (class, message) = bench.execute(AssignedWork::Rank(rank)).await.unwrap_err();
    assert_eq!(class, FailureClass::Internal);
    assert!(message.starts_with(&format!("blob {images}: its bytes have digest")), "{message}");
}
