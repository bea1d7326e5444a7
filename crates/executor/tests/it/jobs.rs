//! Random jobs on small quotas: each ends complete or is refused in advance, and none takes more
//! than its quota.
//!
//! One process for each number of threads takes them in turn, and models with them. A failure names
//! the job's seed and what it was.

use std::{collections::HashMap, env, fmt};

use orchestrator_ledger::Owner;
use orchestrator_model::ModelFolder;
use orchestrator_proto::domain::{
    AssignedWork, DatasetSource, Direction, EncodeImages, EncodeTexts, ModelSource, TextSet,
    UnitResult,
};
use orchestrator_tasks::{Metrics, TaskKind};
use orchestrator_tests::models::{Blocks, Random, Shape};
use orchestrator_types::{ByteCount, FailureClass, MemoryTerms, Precision, Shard};
use tempfile::TempDir;

use crate::{
    bench::{Bench, Outcome, account},
    embedded::Embedded,
    fixtures::{folder, images, model, ranking, texts},
    predictions::made,
};

/// Where shards begin; what is compared was computed from there without a quota.
const STARTS: [u32; 2] = [0, 800];
/// Images that are computed from each start without a quota, and most of a job.
const MOST: u32 = 48;
/// Parts of the prompts, one of which a job encodes.
const PARTS: u32 = 15;

/// Models that jobs are drawn from; the first is tiny-clip.
struct Zoo {
    sources: Vec<ModelSource>,
    names: Vec<&'static str>,
    folders: Vec<TempDir>,
}

impl Zoo {
    fn of(shapes: &[(&'static str, Shape)]) -> Self {
        let mut zoo = Self { sources: vec![model()], names: vec!["tiny-clip"], folders: vec![] };
        for (name, shape) in shapes {
            let folder = made(shape);
            let weights = ModelFolder::open(folder.path()).unwrap().weights_digest().unwrap();
            let (path, precision) = (folder.path().to_owned(), Precision::Fp32);
            zoo.sources.push(ModelSource { folder: path, weights, precision });
            zoo.names.push(name);
            zoo.folders.push(folder);
        }
        zoo
    }
}

/// 197 tokens of 384 numbers.
fn vit_s16() -> Shape {
    let small = Blocks::of(2, 384);
    Shape { vision: small, text: Blocks::of(2, 256), embedding_width: 384, ..Shape::vit_b16(2) }
}

/// Much weight, ten tokens: 200 MB for the vision tower.
fn wide() -> Shape {
    let (vision, text) = (Blocks::of(4, 1024), Blocks::of(4, 768));
    Shape { vision, text, image_size: 96, ..Shape::vit_b32(4) }
}

#[derive(Clone, Copy)]
struct Job {
    seed: u64,
    model: usize,
    name: &'static str,
    threads: usize,
    tile: u32,
    batch: u32,
    quota: ByteCount,
    start: u32,
    count: u32,
    /// Which part of the prompts, if any.
    part: Option<u32>,
}

impl Job {
    fn draw(seed: u64, zoo: &Zoo, tiles: &[u32]) -> Self {
        let mut random = Random(seed);
        let model = random.below(zoo.sources.len());
        let tile = random.pick(tiles);
        // As many below as above any size: 64 MiB … 2 GiB, by powers.
        let sixteenths = u32::try_from(random.below(16 * 5 + 1)).unwrap();
        let quota = 64.0 * f64::from(1 << 20) * 2_f64.powf(f64::from(sixteenths) / 16.0);
        let part = random.pick(&[true, false, false]).then(|| random.pick(&[0, 7, 14]));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "up to 2 GiB")]
        let quota = ByteCount::bytes(quota as u64);
        Self {
            seed,
            model,
            name: zoo.names[model],
            threads: random.pick(&[1, 2]),
            tile,
            batch: tile * random.pick(&[1, 2, 4]),
            quota,
            start: random.pick(&STARTS),
            count: random.pick(&[24, 31, 32, 40, MOST]),
            part,
        }
    }

    fn images(&self, zoo: &Zoo, dataset: &DatasetSource) -> EncodeImages {
        let model = zoo.sources[self.model].clone();
        let (tile, batch) = (self.tile, self.batch);
        EncodeImages { model, tile, batch, ..images(dataset, self.start, self.start + self.count) }
    }

    fn texts(&self, zoo: &Zoo, dataset: &DatasetSource, part: u32) -> EncodeTexts {
        let model = zoo.sources[self.model].clone();
        let (parts, tile) = (PARTS, self.tile);
        EncodeTexts { model, part, parts, tile, ..texts(dataset, TextSet::Prompts) }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, name, threads, tile, batch, quota, start, count, part, .. } = self;
        write!(
            f,
            "seed {seed}: {name}, {threads} threads, tiles of {tile}, batch {batch}, {quota}, \
             images {start}+{count}, texts {part:?}"
        )
    }
}

/// What is computed without a quota, once.
struct References {
    bench: Bench,
    images: HashMap<(usize, u32), Embedded>,
}

impl References {
    async fn start() -> Self {
        Self { bench: Bench::process(2).await, images: HashMap::new() }
    }

    async fn images(&mut self, job: &Job, zoo: &Zoo, dataset: &DatasetSource) -> Embedded {
        let key = (job.model, job.start);
        if !self.images.contains_key(&key) {
            let whole = Job { tile: 4, batch: 8, count: MOST, ..*job }.images(zoo, dataset);
            let result = self.bench.execute(AssignedWork::EncodeImages(whole)).await.unwrap();
            self.images.insert(key, Embedded::of(&self.bench, &result));
        }
        self.images[&key].part(0, job.count as usize)
    }

    /// Cut at the tile of the job, which decides where a part begins.
    async fn texts(&self, job: &Job, zoo: &Zoo, dataset: &DatasetSource) -> Embedded {
        let part = job.part.unwrap();
        let work = job.texts(zoo, dataset, part);
        let result = self.bench.execute(AssignedWork::EncodeTexts(work)).await.unwrap();
        Embedded::of(&self.bench, &result)
    }
}

/// What came of all jobs.
#[derive(Debug, Default)]
struct Summary {
    complete: u32,
    refused: u32,
    /// Largest share of its quota that any job's allocator reached.
    fullest: f64,
    /// Largest error of a prediction before its confirmation, in per cent.
    prediction: f64,
    ooms: u64,
    splits: u64,
    distance: f32,
}

async fn run(jobs: u64, zoo: &Zoo, tiles: &[u32]) -> Summary {
    let (dataset, _) = folder();
    let mut references = References::start().await;
    let mut summary = Summary::default();
    let mut drawn: Vec<Job> = (0..jobs).map(|seed| Job::draw(seed, zoo, tiles)).collect();
    // An executor tells its peak since it started: with rising quotas it must be below each.
    drawn.sort_by_key(|job| (job.threads, job.quota));
    for jobs in drawn.chunk_by(|one, next| one.threads == next.threads) {
        let mut bench = Bench::process(jobs[0].threads).await;
        for job in jobs {
            one(job, zoo, &dataset, &mut references, &bench, &mut summary).await;
            assert!(bench.lives(), "{job}: the process died");
        }
    }
    summary
}

async fn one(
    job: &Job,
    zoo: &Zoo,
    dataset: &DatasetSource,
    references: &mut References,
    bench: &Bench,
    summary: &mut Summary,
) {
    let terms = MemoryTerms { quota: Some(job.quota), ..MemoryTerms::default() };
    let work = AssignedWork::EncodeImages(job.images(zoo, dataset));
    let encoded = bench.execute_on(work, &terms).await;
    if let Some(result) = judge(job, encoded, summary) {
        let expected = references.images(job, zoo, dataset).await;
        close(job, &Embedded::of(bench, &result), &expected, summary);
        if job.model == 0 {
            let found = metrics(bench, job, zoo, dataset, &result, &terms).await;
            let plain = MemoryTerms::default();
            let work = AssignedWork::EncodeImages(job.images(zoo, dataset));
            let result = references.bench.execute(work).await.unwrap();
            let expected = metrics(&references.bench, job, zoo, dataset, &result, &plain).await;
            assert_eq!(found, expected, "{job}");
        }
    }
    if let Some(part) = job.part {
        let work = AssignedWork::EncodeTexts(job.texts(zoo, dataset, part));
        let encoded = bench.execute_on(work, &terms).await;
        if let Some(result) = judge(job, encoded, summary) {
            let expected = references.texts(job, zoo, dataset).await;
            close(job, &Embedded::of(bench, &result), &expected, summary);
        }
    }
}

fn close(job: &Job, found: &Embedded, expected: &Embedded, summary: &mut Summary) {
    let distance = found.distance(expected);
    assert!(distance <= 1e-5, "{job}: embeddings are {distance} apart");
    summary.distance = summary.distance.max(distance);
}

/// The result of a complete job, whose memory is as it must be; `None` of one that was refused as
/// it must be.
fn judge(job: &Job, outcome: Outcome, summary: &mut Summary) -> Option<UnitResult> {
    let result = match outcome {
        Ok(result) => result,
        Err((class, message)) => {
            assert_eq!(class, FailureClass::Resource, "{job}: {message}");
            assert!(message.contains("never fits"), "{job}: {message}");
            assert!(message.contains("missing"), "{job}: {message}");
            summary.refused += 1;
            return None;
        }
    };
    let account = account(&result);
    let (peak, quota) = (account.allocated_peak_bytes, account.quota_bytes);
    assert_eq!(quota, job.quota, "{job}");
    assert!(peak <= quota, "{job}: {peak} of {quota}");
    assert!(account.reserved_peak_bytes <= quota, "{job}");
    for holder in &account.holders {
        let stays = matches!(holder.owner, Owner::Weights { .. } | Owner::Texts);
        assert!(stays, "{job}: {} still holds {}", holder.owner, holder.bytes);
    }
    let forecasts = account.forecasts.iter();
    for (reading, measured) in forecasts.filter_map(|one| Some((one, one.measured_bytes?))) {
        let off = reading.predicted_bytes.as_u64().abs_diff(measured.as_u64()) as f64;
        summary.prediction = summary.prediction.max(100.0 * off / measured.as_u64() as f64);
        assert!(reading.probes <= 3, "{job}: {reading:?}");
    }
    summary.complete += 1;
    summary.fullest = summary.fullest.max(peak.as_u64() as f64 / quota.as_u64() as f64);
    summary.ooms = summary.ooms.max(account.ooms);
    summary.splits = summary.splits.max(account.splits);
    Some(result)
}

/// Zero-shot metrics of a shard.
async fn metrics(
    bench: &Bench,
    job: &Job,
    zoo: &Zoo,
    dataset: &DatasetSource,
    images: &UnitResult,
    terms: &MemoryTerms,
) -> Metrics {
    let shard = Shard { start: job.start, end: job.start + job.count };
    let work = EncodeTexts { parts: 1, ..job.texts(zoo, dataset, 0) };
    let prompts = bench.execute_on(AssignedWork::EncodeTexts(work), terms).await.unwrap();
    let set = (TextSet::Prompts, vec![prompts.blob.digest]);
    let blobs = vec![(shard, images.blob.digest)];
    let work = ranking(dataset, Direction::ImageToClass, set, blobs, shard);
    let ranked = bench.execute_on(AssignedWork::Rank(work), terms).await.unwrap();
    let partial = serde_json::from_str(&ranked.partial).unwrap();
    TaskKind::ZeroShot { top_k: vec![1, 5] }.metrics(&partial).unwrap()
}

#[tokio::test]
async fn forty_random_jobs_complete_with_the_same_embeddings_or_never_fit() {
    let zoo = Zoo::of(&[("B/32", Shape::vit_b32(2)), ("S/16", vit_s16()), ("wide", wide())]);
    let summary = run(40, &zoo, &[1, 2, 4, 16, 32]).await;
    println!("{summary:?}");
    assert!(summary.complete > 20 && summary.refused > 0, "{summary:?}");
    assert_eq!(summary.ooms, 0, "{summary:?}");
}

#[tokio::test]
#[ignore = "takes minutes; `cargo xtask bench memory --jobs N` runs it"]
async fn many_random_jobs_complete_with_the_same_embeddings_or_never_fit() {
    let jobs = env::var("ORCHESTRATOR_BENCH_JOBS").map_or(300, |jobs| jobs.parse().unwrap());
    let zoo = Zoo::of(&[
        ("B/32", Shape::vit_b32(2)),
        ("B/16", Shape::vit_b16(2)),
        ("L/14", Shape::vit_l14(2)),
        ("S/16", vit_s16()),
        ("wide", wide()),
    ]);
    let summary = run(jobs, &zoo, &[1, 2, 4, 8, 16, 32, 64]).await;
    println!(
        "BENCH | {jobs} random jobs | units complete {}, refused in advance {}; fullest quota \
         {:.1} %; out-of-memory errors {}, splits {}; largest prediction error {:.2} %; largest \
         difference {:e} |",
        summary.complete,
        summary.refused,
        100.0 * summary.fullest,
        summary.ooms,
        summary.splits,
        summary.prediction,
        summary.distance
    );
    assert_eq!(summary.ooms, 0, "{summary:?}");
}
