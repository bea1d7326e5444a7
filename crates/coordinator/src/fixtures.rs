//! What the tests of several modules start from: a small evaluation, and results that fit it.

use std::collections::HashMap;

use orchestrator_ledger::{Account, Holder, HostReading, Owner, PhaseReadings, Sample};
use orchestrator_plan::{Direction, Inventory, Measured, SliceOffer, TextSet, plan};
use orchestrator_run::{
    AssignedWork, Assignment, Blob, ExecutorReading, ImageCounts, Timing, UnitResult,
};
use orchestrator_spec::{DatasetFacts, Evaluation, Facts, ModelFacts, TowerFacts};
use orchestrator_tasks::{Partial, Ranked};
use orchestrator_types::{ByteCount, DeviceId, Digest, Phase, Shard, UnitId};
use safetensors::{Dtype, tensor::TensorView};

use crate::{driver::Submitted, store::Submission};

pub(crate) const EVALUATION: &str = "version: 1
name: two small data sets
models: [{path: m}]
datasets:
  a: {format: imagefolder, path: a}
  b: {format: captions, path: b.jsonl}
tasks:
  - zero_shot: {dataset: a}
  - retrieval: {dataset: b}
sweep: {batch: [16, 32]}
";

pub(crate) const SAMPLES: u32 = 300;
const DISTINCT_TEXTS: u32 = 10;
const WIDTH: u32 = 4;

pub(crate) fn evaluation() -> Evaluation {
    orchestrator_spec::parse("eval.yaml", EVALUATION, &[]).unwrap()
}

pub(crate) fn facts() -> Facts {
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
        embedding_width: WIDTH,
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
    let datasets =
        [("a", labelled), ("b", captioned)].map(|(name, facts)| (name.parse().unwrap(), Ok(facts)));
    Facts { models: vec![Ok(model)], datasets: datasets.into() }
}

pub(crate) fn offer(node: &str, number: u32) -> SliceOffer {
    SliceOffer {
        id: format!("{node}.{number}").parse().unwrap(),
        node: node.parse().unwrap(),
        device: DeviceId::Cpu,
        threads: 2,
        memory_bytes: ByteCount::gib(1),
    }
}

pub(crate) fn submitted(request_id: &str, inventory: &Inventory) -> Submitted {
    let (evaluation, facts) = (evaluation(), facts());
    let (base, measured) = (std::path::Path::new("/base"), Measured::default());
    let plan = plan(&evaluation, &facts, inventory, base, &measured).unwrap();
    let json = serde_json::to_string(&plan).unwrap();
    let submission = Submission {
        id: crate::fresh_name(),
        request_id: request_id.into(),
        owner: None,
        name: evaluation.name.clone(),
        build: orchestrator_proto::BUILD.to_owned(),
        units: u32::try_from(plan.units.len()).unwrap(),
        keep_embeddings: true,
        base: "/base".into(),
        eval_yaml: EVALUATION.into(),
        evaluation: serde_json::to_string(&evaluation).unwrap(),
        facts: serde_json::to_string(&facts).unwrap(),
        plan_digest: Digest::of(json.as_bytes()),
        plan: json,
    };
    Submitted { submission, plan }
}

/// A result that an executor could have given: the first candidate is right for every query.
pub(crate) fn result(assignment: &Assignment) -> UnitResult {
    output(assignment).0
}

/// A result with its blob.
pub(crate) fn output(assignment: &Assignment) -> (UnitResult, Vec<u8>) {
    let (rows, partial, bytes) = match &assignment.work {
        AssignedWork::EncodeTexts(work) => {
            let texts = if work.texts == TextSet::Prompts { 20 } else { SAMPLES };
            (DISTINCT_TEXTS, String::new(), text_blob(texts))
        }
        AssignedWork::EncodeImages(work) => {
            (work.shard.len(), String::new(), image_blob(work.shard))
        }
        AssignedWork::Rank(work) => {
            let partial = partial(work.direction, work.queries);
            let lines = lines(work.direction, work.queries);
            (work.queries.len(), serde_json::to_string(&partial).unwrap(), lines)
        }
    };
    let samples = matches!(assignment.work, AssignedWork::EncodeImages(_));
    let result = UnitResult {
        rows: rows.into(),
        blob: Blob { digest: Digest::of(&bytes), size_bytes: ByteCount::bytes(bytes.len() as u64) },
        partial,
        quarantined: Vec::new(),
        timing: Timing { load_ms: 1, total_ms: 20, decode_us: 5, forward_us: 6 },
        cached: false,
        reading: ExecutorReading {
            host_peak_bytes: ByteCount::mib(100),
            weights_bytes: ByteCount::mib(7),
        },
        samples: samples.then(|| Digest::of(b"samples")),
        account: samples.then(|| account(assignment.unit)),
        rows_per_dispatch: if samples { DISPATCHED } else { 0 },
        inline: None,
        images: if samples { IMAGES } else { ImageCounts::default() },
    };
    (result, bytes)
}

/// Rows that a forward pass of images really had, whatever the plan said.
pub(crate) const DISPATCHED: u32 = 24;

/// What every unit of images tells of them.
pub(crate) const IMAGES: ImageCounts = ImageCounts {
    decoded: 3,
    from_cache: 5,
    cache_peak_bytes: ByteCount::mib(2),
    cache_limit_bytes: ByteCount::mib(8),
};

/// What the one executor tells of its memory after `unit`, with one reading.
fn account(unit: UnitId) -> Account {
    let sample = Sample {
        at_unix_ms: unit.0.into(),
        phase: Phase::Run,
        allocated_bytes: ByteCount::mib(20),
        reserved_bytes: ByteCount::mib(20),
        device_bytes: None,
        leased_bytes: ByteCount::mib(21),
        resident_bytes: ByteCount::mib(100),
        anonymous_bytes: ByteCount::mib(60),
        mapped_bytes: ByteCount::mib(40),
        cgroup_used_bytes: None,
    };
    Account {
        started_at_unix_ms: 1,
        device: DeviceId::Cpu,
        quota_bytes: ByteCount::mib(512),
        driver: None,
        allocator: "counting".into(),
        baseline_bytes: None,
        weights_bytes: ByteCount::mib(7),
        predicted_peak_bytes: ByteCount::mib(33),
        allocated_peak_bytes: ByteCount::mib(32),
        reserved_peak_bytes: ByteCount::mib(32),
        device_peak_bytes: None,
        outside_allocator_bytes: None,
        host: HostReading::default(),
        fragmentation: Some(0.0),
        ooms: 2,
        retries: 0,
        splits: 2,
        phases: PhaseReadings::default(),
        forecasts: Vec::new(),
        holders: vec![Holder { owner: Owner::Texts, bytes: ByteCount::kib(1) }],
        peak_holders: Vec::new(),
        breaches: Vec::new(),
        samples: vec![sample],
    }
}

fn sample(position: u32) -> String {
    format!("{position:04}.jpg")
}

fn floats(count: u32) -> Vec<u8> {
    (0..count * WIDTH).flat_map(|n| f32::from(u16::try_from(n).unwrap()).to_le_bytes()).collect()
}

fn image_blob(shard: Shard) -> Vec<u8> {
    let (count, rows) = (shard.range().len(), floats(shard.len()));
    let ids: Vec<String> = (shard.start..shard.end).map(sample).collect();
    let valid = vec![1_u8; count];
    let tensors = [
        ("embeddings", TensorView::new(Dtype::F32, vec![count, WIDTH as usize], &rows).unwrap()),
        ("valid", TensorView::new(Dtype::U8, vec![count], &valid).unwrap()),
    ];
    let notes = HashMap::from([("samples".into(), serde_json::to_string(&ids).unwrap())]);
    safetensors::serialize(tensors, Some(notes)).unwrap()
}

fn text_blob(texts: u32) -> Vec<u8> {
    let (rows, shape) = (floats(DISTINCT_TEXTS), vec![DISTINCT_TEXTS as usize, WIDTH as usize]);
    let row_of: Vec<u8> = (0..texts).flat_map(|n| (n % DISTINCT_TEXTS).to_le_bytes()).collect();
    let tensors = [
        ("embeddings", TensorView::new(Dtype::F32, shape, &rows).unwrap()),
        ("row_of", TensorView::new(Dtype::U32, vec![texts as usize], &row_of).unwrap()),
    ];
    safetensors::serialize(tensors, None).unwrap()
}

fn lines(direction: Direction, queries: Shard) -> Vec<u8> {
    let line = |query| {
        let (sample, label) = match direction {
            Direction::ImageToClass => (sample(query), "cat".to_owned()),
            Direction::ImageToText => (sample(query), format!("{}#0", sample(query))),
            Direction::TextToImage => (format!("{}#0", sample(query)), sample(query)),
        };
        let line = serde_json::json!({
            "sample": sample, "label": label, "top_ids": [label], "top_scores": [0.5],
            "rank": 1, "correct": true,
        });
        format!("{line}\n")
    };
    (queries.start..queries.end).map(line).collect::<String>().into_bytes()
}

fn partial(direction: Direction, queries: Shard) -> Partial {
    let ranked: Vec<Ranked> = (queries.start..queries.end)
        .map(|query| Ranked { query, rank: 1, best: 0, best_score: 0.5, top: vec![(0, 0.5)] })
        .collect();
    match direction {
        Direction::ImageToClass => Partial::zero_shot(&ranked),
        Direction::ImageToText => {
            Partial::retrieval(orchestrator_tasks::Direction::ImageToText, &ranked)
        }
        Direction::TextToImage => {
            Partial::retrieval(orchestrator_tasks::Direction::TextToImage, &ranked)
        }
    }
}

/// The bytes of [`committed_blob`].
pub(crate) const COMMITTED: &[u8] = b"the blob of a committed unit";

/// Stores a run with one committed unit, whose blob this is.
pub(crate) fn committed_blob(store: &crate::store::Store) -> Digest {
    let inventory = Inventory { slices: vec![offer("n", 0)] };
    let key = store.insert_run(&submitted("r", &inventory).submission, 1).unwrap();
    let attempt = orchestrator_run::Attempt {
        unit: UnitId(0),
        number: 1,
        token: orchestrator_types::FencingToken(1),
        session: "s".parse().unwrap(),
        node: "n".parse().unwrap(),
        slice: "n.0".parse().unwrap(),
        started: orchestrator_run::Millis(0),
        terms: orchestrator_run::Terms::default(),
        elsewhere: false,
    };
    let digest = Digest::of(COMMITTED);
    let blob = Blob { digest, size_bytes: ByteCount::bytes(COMMITTED.len() as u64) };
    let result = UnitResult { blob, ..example() };
    store.lease(key, &attempt, 1).unwrap();
    store.commit_unit(key, &attempt, Some(1), &result, 2).unwrap();
    digest
}

/// A result of one row, of nothing in particular.
pub(crate) fn example() -> UnitResult {
    UnitResult {
        rows: 1,
        blob: Blob { digest: Digest::of(b"example"), size_bytes: ByteCount::bytes(7) },
        partial: String::new(),
        quarantined: Vec::new(),
        timing: Timing::default(),
        cached: false,
        reading: ExecutorReading::default(),
        samples: None,
        account: None,
        rows_per_dispatch: 0,
        images: ImageCounts::default(),
        inline: None,
    }
}
