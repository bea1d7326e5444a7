//! What is evaluated: an evaluation with two tasks and two trials, and what an honest executor makes
//! of each unit. Results follow from what a unit is about and from the bytes of its inputs alone.

use std::{collections::BTreeMap, fs, path::Path};

use orchestrator_plan::{Direction, TextSet};
use orchestrator_proto::domain::{
    AssignedRank, AssignedWork, Assignment, Blob, ExecutorReading, QuarantinedSample, Timing,
    UnitResult,
};
use orchestrator_proto::v1::SubmitRequest;
use orchestrator_spec::{DatasetFacts, Evaluation, Facts, ModelFacts, TowerFacts};
use orchestrator_tasks::{Partial, Ranked};
use orchestrator_types::{ByteCount, DatasetName, Digest, SampleId, Shard};

/// A legal run id, so that a repeated submission is recognised.
pub(crate) const RUN: &str = "01k6zzzzzzzzzzzzzzzzzzzzzz";

const EVALUATION: &str = "version: 1
name: simulated
models: [{path: m}]
datasets:
  a: {format: imagefolder, path: a}
  b: {format: captions, path: b.jsonl}
tasks:
  - zero_shot: {dataset: a}
  - retrieval: {dataset: b}
sweep: {batch: [16, 32]}
placement: {split: always}
";

const SAMPLES: u32 = 1_500;
/// Into which this is cut.
pub(crate) const UNITS: usize = 52;
const DISTINCT_TEXTS: u32 = 10;

/// What is wrong with the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Flaws {
    /// This image of dataset `a` cannot be read.
    pub(crate) unreadable: Option<u32>,
    /// This image of dataset `b` kills whoever computes it.
    pub(crate) deadly: Option<u32>,
}

/// The submission.
pub(crate) fn submission() -> SubmitRequest {
    let evaluation: Evaluation =
        orchestrator_spec::parse("eval.yaml", EVALUATION, &[]).expect("it is valid");
    SubmitRequest {
        request_id: RUN.to_owned(),
        eval_yaml: EVALUATION.to_owned(),
        evaluation: serde_json::to_vec(&evaluation).expect("it has a JSON form"),
        facts: serde_json::to_vec(&facts()).expect("they have a JSON form"),
        base: "/base".to_owned(),
        ..SubmitRequest::default()
    }
}

fn facts() -> Facts {
    let tower = |tokens, width| TowerFacts {
        layers: 6,
        width,
        heads: 4,
        mlp: 4 * width,
        tokens,
        weights_bytes: ByteCount::mib(7),
    };
    let model = ModelFacts {
        architecture: "CLIPModel".into(),
        weights_bytes: ByteCount::bytes(15_280_000),
        parameters: 7_640_000,
        weights_blake3: Digest::of(b"weights"),
        tokenizer_blake3: Digest::of(b"tokenizer"),
        preprocess: "bicubic 112".into(),
        crop: "112".into(),
        image_size: 112,
        context: 32,
        embedding_width: 4,
        vision: tower(50, 256),
        text: tower(32, 192),
    };
    let labelled = DatasetFacts {
        samples: SAMPLES,
        labelled: true,
        classes: 10,
        templates: 2,
        captions_first: 0,
        captions_all: 0,
        manifest_digest: Digest::of(b"a"),
        templates_digest: Some(Digest::of(b"templates")),
        warnings: Vec::new(),
    };
    let captioned = DatasetFacts {
        labelled: false,
        classes: 0,
        templates: 0,
        captions_first: SAMPLES,
        captions_all: SAMPLES,
        manifest_digest: Digest::of(b"b"),
        templates_digest: None,
        ..labelled.clone()
    };
    let named = [("a", labelled), ("b", captioned)];
    let datasets = named.map(|(name, facts)| (name.parse().expect("a name"), Ok(facts)));
    Facts { models: vec![Ok(model)], datasets: datasets.into() }
}

/// Whether computing the unit kills its executor.
pub(crate) fn kills(assignment: &Assignment, flaws: Flaws) -> bool {
    let AssignedWork::EncodeImages(work) = &assignment.work else { return false };
    let Some(deadly) = flaws.deadly.filter(|_| work.dataset.name.as_str() == "b") else {
        return false;
    };
    let aside = assignment.set_aside.iter().any(|part| holds(*part, deadly));
    holds(work.shard, deadly) && !aside
}

fn holds(shard: Shard, position: u32) -> bool {
    shard.start <= position && position < shard.end
}

/// The result of a unit with its blob; inputs are read from `blobs`.
pub(crate) fn output(
    assignment: &Assignment,
    blobs: &Path,
    flaws: Flaws,
) -> std::io::Result<(UnitResult, Vec<u8>)> {
    let mut quarantined = Vec::new();
    let (rows, partial, bytes) = match &assignment.work {
        AssignedWork::EncodeTexts(work) => {
            let set = format!("{:?} of {}", work.texts, work.dataset.name);
            (
                u64::from(DISTINCT_TEXTS),
                String::new(),
                Digest::of(set.as_bytes()).as_bytes().to_vec(),
            )
        }
        AssignedWork::EncodeImages(work) => {
            let bad = bad_rows(assignment, &work.dataset.name, work.shard, flaws);
            quarantined.extend(bad.iter().map(|(position, reason)| QuarantinedSample {
                position: *position,
                sample: SampleId(name(*position)),
                reason: reason.clone(),
            }));
            let valid = |row: u32| u8::from(!bad.contains_key(&row));
            (
                work.shard.len().into(),
                String::new(),
                image_rows(&work.dataset.name, work.shard, valid),
            )
        }
        AssignedWork::Rank(work) => {
            let ranked = ranking(work, blobs)?;
            let partial = match work.direction {
                Direction::ImageToClass => Partial::zero_shot(&ranked),
                Direction::ImageToText => {
                    Partial::retrieval(orchestrator_tasks::Direction::ImageToText, &ranked)
                }
                Direction::TextToImage => {
                    Partial::retrieval(orchestrator_tasks::Direction::TextToImage, &ranked)
                }
            };
            let partial = serde_json::to_string(&partial).expect("it has a JSON form");
            (ranked.len() as u64, partial, lines(work, &ranked))
        }
    };
    let samples = match &assignment.work {
        AssignedWork::EncodeImages(work) => {
            Some(Digest::of(format!("{} {}", work.dataset.name, work.shard).as_bytes()))
        }
        _ => None,
    };
    let size_bytes = ByteCount::bytes(bytes.len() as u64);
    let result = UnitResult {
        rows,
        blob: Blob { digest: Digest::of(&bytes), size_bytes },
        partial,
        quarantined,
        timing: Timing::default(),
        cached: false,
        reading: ExecutorReading::default(),
        samples,
        account: None,
        rows_per_dispatch: 0,
        inline: None,
        images: orchestrator_proto::domain::ImageCounts::default(),
    };
    Ok((result, bytes))
}

fn bad_rows(
    assignment: &Assignment,
    dataset: &DatasetName,
    shard: Shard,
    flaws: Flaws,
) -> BTreeMap<u32, String> {
    let unreadable = flaws.unreadable.filter(|_| dataset.as_str() == "a");
    let mut bad: BTreeMap<u32, String> = unreadable
        .filter(|position| holds(shard, *position))
        .map(|position| (position, "it is no image".to_owned()))
        .into_iter()
        .collect();
    for part in &assignment.set_aside {
        let reason = || assignment.set_aside_reason.clone();
        bad.extend((part.start..part.end).map(|position| (position, reason())));
    }
    bad
}

/// Bytes of a row: blobs of dataset `a` travel in several pieces, those of `b` with their result.
fn width(dataset: &DatasetName) -> usize {
    if dataset.as_str() == "a" { 129 } else { 9 }
}

/// Of each row, whether it is valid and what it is.
fn image_rows(dataset: &DatasetName, shard: Shard, valid: impl Fn(u32) -> u8) -> Vec<u8> {
    let row = |position: u32| {
        let digest = Digest::of(format!("{dataset} {position}").as_bytes());
        let mut row = vec![valid(position)];
        row.extend(digest.as_bytes()[..8].iter().cycle().take(width(dataset) - 1));
        row
    };
    (shard.start..shard.end).flat_map(row).collect()
}

fn ranking(work: &AssignedRank, blobs: &Path) -> std::io::Result<Vec<Ranked>> {
    let read = |digest: &Digest| fs::read(blobs.join(digest.to_string()));
    let mut inputs = blake3::Hasher::new();
    for digest in &work.text_blobs {
        inputs.update(&read(digest)?);
    }
    let mut valid = BTreeMap::new();
    for (shard, digest) in &work.image_blobs {
        let rows = read(digest)?;
        inputs.update(&rows);
        for (position, row) in (shard.start..shard.end).zip(rows.chunks(width(&work.dataset.name)))
        {
            valid.insert(position, row[0] == 1);
        }
    }
    let inputs = inputs.finalize();
    let is_asked = |query: &u32| match work.direction {
        Direction::ImageToClass | Direction::ImageToText => {
            valid.get(query).copied().unwrap_or(false)
        }
        // The first caption of an image goes where its image goes.
        Direction::TextToImage => valid.get(query).copied().unwrap_or(true),
    };
    let ranked = |query: u32| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(inputs.as_bytes());
        hasher.update(&query.to_le_bytes());
        let chance = hasher.finalize().as_bytes()[0];
        let best = u32::from(chance % 10);
        let rank = u32::from(chance % 7) + 1;
        Ranked { query, rank, best, best_score: 0.5, top: vec![(best, 0.5)] }
    };
    Ok((work.queries.start..work.queries.end).filter(is_asked).map(ranked).collect())
}

fn name(position: u32) -> String {
    format!("{position:04}.jpg")
}

fn lines(work: &AssignedRank, ranked: &[Ranked]) -> Vec<u8> {
    let line = |ranked: &Ranked| {
        let image = name(ranked.query);
        let caption = format!("{image}#0");
        let (sample, label) = match (work.direction, work.texts) {
            (Direction::ImageToClass, _) | (_, TextSet::Prompts) => (image, "cat".to_owned()),
            (Direction::ImageToText, _) => (image, caption),
            (Direction::TextToImage, _) => (caption, image),
        };
        let line = serde_json::json!({
            "sample": sample, "label": label, "top_ids": [label], "top_scores": [0.5],
            "rank": ranked.rank, "correct": ranked.rank == 1,
        });
        format!("{line}\n")
    };
    ranked.iter().map(line).collect::<String>().into_bytes()
}
