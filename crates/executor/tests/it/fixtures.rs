//! The test data as the plan would name it.

use std::path::{Path, PathBuf};

use orchestrator_data::dataset::{Manifest, Source};
use orchestrator_model::ModelFolder;
use orchestrator_proto::domain::{
    AssignedRank, AssignedWork, DatasetSource, Direction, EncodeImages, EncodeTexts, ModelSource,
    SourceKind, TextSet,
};
use orchestrator_types::{Digest, Precision, Shard, shards};

use crate::bench::Bench;

pub(crate) const IMAGES: u32 = 1593;
/// Images in a tile, as the plan cuts them for 50 tokens.
pub(crate) const TILE: u32 = 4;
const TEXT_TILE: u32 = 32;
const SHARD: u32 = 256;

pub(crate) fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data")
}

pub(crate) fn model() -> ModelSource {
    let folder = data().join("models/tiny-clip");
    let weights = ModelFolder::open(&folder).unwrap().weights_digest().unwrap();
    ModelSource { folder, weights, precision: Precision::Fp32 }
}

/// The dataset and what the plan knows of it.
pub(crate) fn dataset(source: SourceKind) -> (DatasetSource, Manifest) {
    let opened = match source.clone() {
        SourceKind::ImageFolder { root, classes } => Source::ImageFolder { root, classes },
        SourceKind::Captions { file } => Source::Captions { file },
    };
    let manifest = Manifest::open(&opened).unwrap();
    let name = "fluent".parse().unwrap();
    (DatasetSource { name, source, manifest: manifest.digest() }, manifest)
}

pub(crate) fn folder() -> (DatasetSource, Manifest) {
    let fluent = data().join("fluent");
    dataset(SourceKind::ImageFolder {
        root: fluent.join("imagefolder"),
        classes: Some(fluent.join("classes.json")),
    })
}

pub(crate) fn captions() -> (DatasetSource, Manifest) {
    dataset(SourceKind::Captions { file: data().join("fluent/captions.jsonl") })
}

pub(crate) fn images(dataset: &DatasetSource, start: u32, end: u32) -> EncodeImages {
    EncodeImages {
        model: model(),
        dataset: dataset.clone(),
        shard: Shard { start, end },
        batch: 64,
        tile: TILE,
        quarantine_bad_samples: true,
        recipe: None,
    }
}

pub(crate) fn texts(dataset: &DatasetSource, texts: TextSet) -> EncodeTexts {
    let (model, dataset) = (model(), dataset.clone());
    EncodeTexts { model, dataset, texts, part: 0, parts: 1, batch: 512, tile: TEXT_TILE }
}

pub(crate) fn ranking(
    dataset: &DatasetSource,
    direction: Direction,
    texts: (TextSet, Vec<Digest>),
    images: Vec<(Shard, Digest)>,
    queries: Shard,
) -> AssignedRank {
    let (texts, text_blobs) = texts;
    let dataset = dataset.clone();
    AssignedRank { dataset, texts, direction, queries, depth: 10, text_blobs, image_blobs: images }
}

/// Encodes all texts of a set in `parts` units.
pub(crate) async fn encode_texts(
    bench: &Bench,
    dataset: &DatasetSource,
    set: TextSet,
    parts: u32,
) -> Vec<Digest> {
    let mut blobs = Vec::new();
    for part in 0..parts {
        let work = EncodeTexts { part, parts, ..texts(dataset, set) };
        let result = bench.execute(AssignedWork::EncodeTexts(work)).await.unwrap();
        blobs.push(result.blob.digest);
    }
    blobs
}

/// Encodes all images in shards, the last one first.
pub(crate) async fn encode_images(
    bench: &Bench,
    dataset: &DatasetSource,
    batch: u32,
) -> Vec<(Shard, Digest)> {
    let mut blobs = Vec::new();
    for shard in shards(IMAGES, SHARD).collect::<Vec<_>>().into_iter().rev() {
        let work = EncodeImages { batch, ..images(dataset, shard.start, shard.end) };
        let result = bench.execute(AssignedWork::EncodeImages(work)).await.unwrap();
        assert_eq!((result.rows, result.quarantined.len()), (u64::from(shard.len()), 0));
        blobs.push((shard, result.blob.digest));
    }
    blobs.reverse();
    blobs
}
