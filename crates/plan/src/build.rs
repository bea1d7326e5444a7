//! [`plan`]: the decisions.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use orchestrator_spec::{
    Batch, CaptionChoice, Dataset, DatasetFacts, Evaluation, Facts, ModelFacts, OnBadSample, Task,
    Trial,
};
use orchestrator_types::{ByteCount, Component, DatasetName, Shard, SliceId, UnitId, shards};

use crate::{
    BatchPlan, Claim, DatasetSource, Direction, EncodeImages, EncodeTexts, Inventory, ModelSource,
    PLAN_SCHEMA, Plan, Rank, RankingPlan, SliceOffer, SourceKind, TaskPlan, TextSet, TrialPlan,
    Unit, UnitRange, Work, claim::Dispatch, placement::place,
};

/// Tokens that a tile of images aims at. Small tiles stay in a core's cache: on two kinds of
/// machine 4 images of 50 tokens were the fastest, and larger ones slower.
const TILE_TOKENS: u32 = 256;
/// Texts in a tile: enough to keep short sequences busy, small enough for a core's cache.
const TEXT_TILE: u32 = 32;
/// Images decoded ahead when the batch is the planner's choice.
const AUTO_VISION_BATCH: u32 = 64;
/// Texts per dispatch when the batch is the planner's choice.
const AUTO_TEXT_BATCH: u32 = 512;
/// A shard is the most that a crash can lose, and small enough that slices end together.
const SHARD_SAMPLES: u32 = 256;
/// At most about this many shards a dataset, so that bookkeeping stays small.
const SHARDS: u32 = 4096;
/// Texts that one unit encodes at most.
const PART_TEXTS: u32 = 16_384;
/// Queries that one text → image unit ranks.
const QUERY_SHARD: u32 = 2048;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Nothing to run on.
    #[error("the inventory holds no slice; start a worker or pass a slice in the inventory file")]
    NoSlice,
    /// A slice can never hold what it would have to.
    #[error(
        "slice {slice} never fits: {needed} needed, {quota} offered{}; offer a larger slice or a \
         smaller batch", describe(.largest.as_deref())
    )]
    NeverFits {
        /// The slice.
        slice: SliceId,
        /// Predicted peak.
        needed: ByteCount,
        /// What it offers.
        quota: ByteCount,
        /// The largest single claim.
        largest: Option<Box<Claim>>,
    },
    /// The facts do not belong to the evaluation, or name something unusable.
    #[error("no facts about {what}; check the evaluation before planning it")]
    NoFacts {
        /// The model or dataset.
        what: String,
    },
    /// More rows than positions can count.
    #[error("dataset `{dataset}` has too many texts: {texts}, at most {} can be planned", u32::MAX)]
    TooManyTexts {
        /// The dataset.
        dataset: DatasetName,
        /// Its texts.
        texts: u64,
    },
}

fn describe(largest: Option<&Claim>) -> String {
    largest.map_or_else(String::new, |claim| {
        format!(
            " ({} weights {}, activations {}, staging {})",
            claim.component, claim.weights_bytes, claim.activations_bytes, claim.staging_bytes
        )
    })
}

/// Decides everything that a run of `evaluation` will do on `inventory`. Relative paths of the
/// evaluation start at `base`.
///
/// # Errors
/// See [`PlanError`].
pub fn plan(
    evaluation: &Evaluation,
    facts: &Facts,
    inventory: &Inventory,
    base: &Path,
) -> Result<Plan, PlanError> {
    let models = evaluation
        .models
        .iter()
        .zip(&facts.models)
        .map(|(model, facts)| {
            let known = facts.as_ref().ok();
            known.ok_or_else(|| PlanError::NoFacts { what: format!("model `{}`", model.path) })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let trials = evaluation.trials();
    let shapes: Vec<Shape> =
        trials.iter().map(|trial| Shape::of(trial, models[trial.model])).collect();
    let (placement, mut reasons) = place(inventory, |offer, components| {
        claims(evaluation, &models, &trials, &shapes, offer, components)
    })?;
    let mut builder =
        Builder { evaluation, facts, base, units: Vec::new(), known: BTreeMap::new() };
    let planned = trials
        .iter()
        .zip(&shapes)
        .map(|(trial, shape)| builder.trial(trial, models[trial.model], shape))
        .collect::<Result<Vec<_>, _>>()?;
    reasons.extend(shapes.iter().flat_map(|shape| shape.reasons.iter().cloned()));
    reasons.dedup();
    Ok(Plan {
        schema: PLAN_SCHEMA.to_owned(),
        name: evaluation.name.clone(),
        placement,
        trials: planned,
        units: builder.units,
        reasons,
    })
}

/// Rows computed together and rows per dispatch, of one trial.
struct Shape {
    vision_tile: u32,
    batch: BatchPlan,
    reasons: Vec<String>,
}

impl Shape {
    fn of(trial: &Trial, model: &ModelFacts) -> Self {
        let vision_tile = previous_power_of_two(TILE_TOKENS / model.vision.tokens.max(1));
        let mut reasons = vec![format!(
            "tiles: {vision_tile} images of {} tokens, {TEXT_TILE} texts; fixed by the model, so \
             that results do not depend on batch or slices",
            model.vision.tokens
        )];
        let mut whole_tiles = |component: Component, batch: u32, tile: u32| {
            let rounded = batch.div_ceil(tile) * tile;
            if rounded != batch {
                reasons.push(format!("{component} batch {batch} → {rounded}: whole tiles"));
            }
            rounded
        };
        let batch = match trial.batch {
            Batch::Auto => BatchPlan { vision: AUTO_VISION_BATCH, text: AUTO_TEXT_BATCH },
            Batch::Fixed(rows) => BatchPlan {
                vision: whole_tiles(Component::Vision, rows.get(), vision_tile),
                text: whole_tiles(Component::Text, rows.get(), TEXT_TILE),
            },
        };
        Self { vision_tile, batch, reasons }
    }
}

fn previous_power_of_two(n: u32) -> u32 {
    if n == 0 { 1 } else { 1 << n.ilog2() }
}

/// The largest claim of every component and model over all trials, for one slice.
fn claims(
    evaluation: &Evaluation,
    models: &[&ModelFacts],
    trials: &[Trial],
    shapes: &[Shape],
    offer: &SliceOffer,
    components: &[Component],
) -> Vec<Claim> {
    let mut largest: BTreeMap<(Component, usize), Claim> = BTreeMap::new();
    for (trial, shape) in trials.iter().zip(shapes) {
        let (model, name) = (models[trial.model], &evaluation.models[trial.model].path);
        let threads = offer.threads;
        for &component in components {
            let (key, claim) = match component {
                Component::Text => {
                    let rows = Dispatch { tile: TEXT_TILE, batch: shape.batch.text, threads };
                    (trial.model, Claim::text(name, model, trial.precision, rows))
                }
                Component::Vision => {
                    let (tile, batch) = (shape.vision_tile, shape.batch.vision);
                    let rows = Dispatch { tile, batch, threads };
                    (trial.model, Claim::vision(name, model, trial.precision, rows))
                }
                Component::Score => (0, Claim::score(model.embedding_width, threads)),
            };
            let entry = largest.entry((component, key)).or_insert_with(|| claim.clone());
            if claim.peak() > entry.peak() {
                *entry = claim;
            }
        }
    }
    largest.into_values().collect()
}

/// Work that several trials or tasks share is planned once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Shared {
    Texts(ModelSource, DatasetSource, TextSet),
    Images(ModelSource, DatasetSource, u32),
}

struct Builder<'a> {
    evaluation: &'a Evaluation,
    facts: &'a Facts,
    base: &'a Path,
    units: Vec<Unit>,
    known: BTreeMap<Shared, UnitRange>,
}

impl Builder<'_> {
    fn trial(
        &mut self,
        trial: &Trial,
        model: &ModelFacts,
        shape: &Shape,
    ) -> Result<TrialPlan, PlanError> {
        let path = &self.evaluation.models[trial.model].path;
        let source = ModelSource {
            folder: self.absolute(path),
            weights: model.weights_blake3,
            precision: trial.precision,
        };
        let tasks = self
            .evaluation
            .tasks
            .iter()
            .map(|task| self.task(task, &source, shape))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(TrialPlan {
            id: trial.id,
            model: path.clone(),
            precision: trial.precision,
            batch: shape.batch,
            tasks,
        })
    }

    fn task(
        &mut self,
        task: &Task,
        model: &ModelSource,
        shape: &Shape,
    ) -> Result<TaskPlan, PlanError> {
        let name = task.dataset();
        let missing = || PlanError::NoFacts { what: format!("dataset `{name}`") };
        let facts = self.facts.datasets.get(name).ok_or_else(missing)?;
        let facts = facts.as_ref().map_err(|_| missing())?;
        let dataset = self.dataset(name, facts)?;
        let (set, count) = texts(task, name, facts)?;
        let texts = self.text_units(model, &dataset, set, count, shape);
        let images = self.image_units(model, &dataset, facts.samples, shape);
        let rank = |direction, queries, depth| Rank {
            dataset: dataset.clone(),
            texts: set,
            direction,
            queries,
            depth,
            text_units: texts,
            image_units: images,
        };
        let rankings = match task {
            Task::ZeroShot { top_k, .. } => {
                vec![self.image_queries(
                    |shard| rank(Direction::ImageToClass, shard, depth(top_k, facts.classes)),
                    images,
                )]
            }
            Task::Retrieval { recall_at, .. } => vec![
                self.image_queries(
                    |shard| rank(Direction::ImageToText, shard, depth(recall_at, count)),
                    images,
                ),
                self.text_queries(
                    |shard| rank(Direction::TextToImage, shard, depth(recall_at, facts.samples)),
                    count,
                ),
            ],
        };
        Ok(TaskPlan { task: task.clone(), samples: facts.samples, images, texts, rankings })
    }

    fn dataset(
        &self,
        name: &DatasetName,
        facts: &DatasetFacts,
    ) -> Result<DatasetSource, PlanError> {
        let declared = self.evaluation.datasets.get(name);
        let declared =
            declared.ok_or_else(|| PlanError::NoFacts { what: format!("dataset `{name}`") })?;
        let source = match declared {
            Dataset::ImageFolder { path, classes } => SourceKind::ImageFolder {
                root: self.absolute(path),
                classes: classes.as_deref().map(|classes| self.absolute(classes)),
            },
            Dataset::Captions { path } => SourceKind::Captions { file: self.absolute(path) },
        };
        Ok(DatasetSource { name: name.clone(), source, manifest: facts.manifest_digest })
    }

    fn absolute(&self, path: &str) -> PathBuf {
        self.base.join(path)
    }

    fn push(&mut self, work: Work, needs: Vec<UnitRange>, rows: u32) {
        let id = UnitId(self.next());
        self.units.push(Unit { id, work, needs, rows });
    }

    fn next(&self) -> u32 {
        u32::try_from(self.units.len()).expect("shards bound the number of units")
    }

    fn text_units(
        &mut self,
        model: &ModelSource,
        dataset: &DatasetSource,
        texts: TextSet,
        count: u32,
        shape: &Shape,
    ) -> UnitRange {
        let key = Shared::Texts(model.clone(), dataset.clone(), texts);
        if let Some(range) = self.known.get(&key) {
            return *range;
        }
        let (start, parts) = (self.next(), count.div_ceil(PART_TEXTS).max(1));
        for part in 0..parts {
            let work = EncodeTexts {
                model: model.clone(),
                dataset: dataset.clone(),
                texts,
                part,
                parts,
                batch: shape.batch.text,
                tile: TEXT_TILE,
            };
            self.push(
                Work::EncodeTexts(work),
                Vec::new(),
                EncodeTexts::most_rows(count, parts, TEXT_TILE),
            );
        }
        let range = UnitRange { start, end: self.next() };
        self.known.insert(key, range);
        range
    }

    fn image_units(
        &mut self,
        model: &ModelSource,
        dataset: &DatasetSource,
        samples: u32,
        shape: &Shape,
    ) -> UnitRange {
        let key = Shared::Images(model.clone(), dataset.clone(), shape.batch.vision);
        if let Some(range) = self.known.get(&key) {
            return *range;
        }
        let start = self.next();
        for shard in shards(samples, shard_samples(samples)) {
            let work = EncodeImages {
                model: model.clone(),
                dataset: dataset.clone(),
                shard,
                batch: shape.batch.vision,
                tile: shape.vision_tile,
                quarantine_bad_samples: self.evaluation.on_bad_sample == OnBadSample::Quarantine,
            };
            self.push(Work::EncodeImages(work), Vec::new(), shard.len());
        }
        let range = UnitRange { start, end: self.next() };
        self.known.insert(key, range);
        range
    }

    /// One ranking unit for each image shard: it needs that shard alone.
    fn image_queries(&mut self, rank: impl Fn(Shard) -> Rank, images: UnitRange) -> RankingPlan {
        let start = self.next();
        let mut direction = Direction::ImageToClass;
        for image in images.iter() {
            let Work::EncodeImages(EncodeImages { shard, .. }) = &self.units[image.0 as usize].work
            else {
                unreachable!("image ranges hold image units only")
            };
            let own = UnitRange { start: image.0, end: image.0 + 1 };
            let work = Rank { image_units: own, ..rank(*shard) };
            direction = work.direction;
            let (needs, rows) = (vec![work.text_units, own], shard.len());
            self.push(Work::Rank(work), needs, rows);
        }
        RankingPlan { direction, units: UnitRange { start, end: self.next() } }
    }

    /// One ranking unit for each shard of the texts: it needs every image.
    fn text_queries(&mut self, rank: impl Fn(Shard) -> Rank, count: u32) -> RankingPlan {
        let start = self.next();
        for shard in shards(count, QUERY_SHARD) {
            let work = rank(shard);
            let needs = vec![work.text_units, work.image_units];
            self.push(Work::Rank(work), needs, shard.len());
        }
        let units = UnitRange { start, end: self.next() };
        RankingPlan { direction: Direction::TextToImage, units }
    }
}

fn texts(
    task: &Task,
    name: &DatasetName,
    facts: &DatasetFacts,
) -> Result<(TextSet, u32), PlanError> {
    match task {
        Task::ZeroShot { .. } => {
            let texts = u64::from(facts.classes) * u64::from(facts.templates);
            let count = u32::try_from(texts)
                .map_err(|_| PlanError::TooManyTexts { dataset: name.clone(), texts })?;
            Ok((TextSet::Prompts, count))
        }
        Task::Retrieval { captions: CaptionChoice::First, .. } => {
            Ok((TextSet::FirstCaptions, facts.captions_first))
        }
        Task::Retrieval { captions: CaptionChoice::All, .. } => {
            Ok((TextSet::AllCaptions, facts.captions_all))
        }
    }
}

/// Samples in a shard: by the dataset alone.
fn shard_samples(samples: u32) -> u32 {
    samples.div_ceil(SHARDS).next_multiple_of(SHARD_SAMPLES).max(SHARD_SAMPLES)
}

/// Candidates to keep per query: what the largest k asks for.
fn depth(ks: &[u32], candidates: u32) -> u32 {
    ks.iter().copied().max().unwrap_or(1).min(candidates.max(1))
}
