//! The units of a plan, shared between the trials and tasks that need the same work.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use orchestrator_spec::{
    CaptionChoice, Dataset, DatasetFacts, Evaluation, Facts, ModelFacts, OnBadSample, Task, Trial,
};
use orchestrator_types::{DatasetName, Shard, UnitId};

use super::{
    PlanError,
    shape::{Shape, TEXT_TILE},
};
use crate::{
    Block, DatasetSource, Direction, EncodeImages, EncodeTexts, ModelSource, Rank, RankingPlan,
    SourceKind, TaskPlan, TextSet, TrialPlan, Unit, UnitRange, Units, Work, recipe,
};
use crate::{claim::Sizes, work::placed};

/// A shard is the most that a crash can lose, and small enough that slices end together.
const SHARD_SAMPLES: u32 = 256;
/// At most about this many shards a dataset, so that bookkeeping stays small.
const SHARDS: u32 = 4096;
/// Texts that one unit encodes at most.
const PART_TEXTS: u32 = 16_384;
/// Images that an executor holds at once where they are candidates.
const MOST_BLOCK_IMAGES: u32 = 32_768;
/// Queries that one text → image unit ranks.
const QUERY_SHARD: u32 = 2048;

/// Work that several trials or tasks share is planned once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Shared {
    Texts(ModelSource, DatasetSource, TextSet),
    Images(ModelSource, DatasetSource, u32),
}

pub(super) struct Builder<'a> {
    evaluation: &'a Evaluation,
    facts: &'a Facts,
    base: &'a Path,
    units: Units,
    known: BTreeMap<Shared, UnitRange>,
}

impl<'a> Builder<'a> {
    /// Nothing planned yet; relative paths start at `base`.
    pub(super) fn new(evaluation: &'a Evaluation, facts: &'a Facts, base: &'a Path) -> Self {
        Self { evaluation, facts, base, units: Units::default(), known: BTreeMap::new() }
    }

    /// Everything that was planned, in order.
    pub(super) fn into_units(self) -> Units {
        self.units
    }

    /// The units of one trial.
    pub(super) fn trial(
        &mut self,
        trial: &Trial,
        model: &ModelFacts,
        shape: &Shape,
    ) -> Result<TrialPlan, PlanError> {
        let path = &self.evaluation.models[trial.model].path;
        let source = ModelSource::of(self.base, path, model, trial.precision);
        let tasks = self
            .evaluation
            .tasks
            .iter()
            .map(|task| self.task(task, (&source, &model.crop), shape))
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
        (model, crop): (&ModelSource, &str),
        shape: &Shape,
    ) -> Result<TaskPlan, PlanError> {
        let name = task.dataset();
        let missing = || PlanError::NoFacts { what: format!("dataset `{name}`") };
        let facts = self.facts.datasets.get(name).ok_or_else(missing)?;
        let facts = facts.as_ref().map_err(|_| missing())?;
        let dataset = self.dataset(name, facts)?;
        let (set, count) = texts(task, name, facts)?;
        let texts = self.text_units(model, &dataset, set, count, shape);
        let images = self.image_units(model, crop, &dataset, facts.samples, shape);
        let cut = Cut::of(facts.samples, shard_samples(facts.samples, shape.least_shard));
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
                    cut,
                )]
            }
            Task::Retrieval { recall_at, .. } => vec![
                self.image_queries(
                    |shard| rank(Direction::ImageToText, shard, depth(recall_at, count)),
                    cut,
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
        placed(self.base, path)
    }

    /// Plans `count` units like the first one, `rows` each and `last_rows` in the last.
    fn push(&mut self, work: Work, count: u32, rows: u32, last_rows: u32) -> UnitRange {
        let (id, turn, group) = (UnitId(0), 0, None);
        let first = Unit { id, work, rows, turn, group };
        self.units.push(Block { first, count, last_rows })
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
        let parts = count.div_ceil(PART_TEXTS).max(1);
        let work = EncodeTexts {
            model: model.clone(),
            dataset: dataset.clone(),
            texts,
            part: 0,
            parts,
            batch: shape.batch.text,
            tile: TEXT_TILE,
        };
        let rows = EncodeTexts::most_rows(count, parts, TEXT_TILE);
        let range = self.push(Work::EncodeTexts(work), parts, rows, rows);
        self.known.insert(key, range);
        range
    }

    fn image_units(
        &mut self,
        model: &ModelSource,
        crop: &str,
        dataset: &DatasetSource,
        samples: u32,
        shape: &Shape,
    ) -> UnitRange {
        let key = Shared::Images(model.clone(), dataset.clone(), shape.batch.vision);
        if let Some(range) = self.known.get(&key) {
            return *range;
        }
        let cut = Cut::of(samples, shard_samples(samples, shape.least_shard));
        let work = EncodeImages {
            model: model.clone(),
            dataset: dataset.clone(),
            shard: cut.first(),
            batch: shape.batch.vision,
            tile: shape.vision_tile,
            quarantine_bad_samples: self.evaluation.on_bad_sample == OnBadSample::Quarantine,
            recipe: Some(recipe(dataset.manifest, crop)),
        };
        let range = self.push(Work::EncodeImages(work), cut.count, cut.rows, cut.last_rows);
        self.known.insert(key, range);
        range
    }

    /// One ranking unit for each image shard: it needs that shard alone.
    fn image_queries(&mut self, rank: impl Fn(Shard) -> Rank, cut: Cut) -> RankingPlan {
        let work = rank(cut.first());
        let start = work.image_units.start;
        let work = Rank { image_units: UnitRange { start, end: start + 1 }, ..work };
        let direction = work.direction;
        let units = self.push(Work::Rank(work), cut.count, cut.rows, cut.last_rows);
        RankingPlan { direction, units }
    }

    /// One ranking unit for each shard of the texts: it needs every image.
    fn text_queries(&mut self, rank: impl Fn(Shard) -> Rank, count: u32) -> RankingPlan {
        let cut = Cut::of(count, QUERY_SHARD);
        let work = rank(cut.first());
        let direction = work.direction;
        let units = self.push(Work::Rank(work), cut.count, cut.rows, cut.last_rows);
        RankingPlan { direction, units }
    }
}

/// Rows in shards of the same size, but for the last one.
#[derive(Clone, Copy)]
struct Cut {
    count: u32,
    rows: u32,
    last_rows: u32,
}

impl Cut {
    const fn of(rows: u32, most: u32) -> Self {
        let count = rows.div_ceil(most);
        let last_rows = rows - count.saturating_sub(1) * most;
        Self { count, rows: if count > 1 { most } else { rows }, last_rows }
    }

    const fn first(self) -> Shard {
        Shard { start: 0, end: self.rows }
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

/// Samples in a shard, at least `least`: by the dataset alone, but for GPUs.
fn shard_samples(samples: u32, least: u32) -> u32 {
    let least = SHARD_SAMPLES.max(least);
    samples.div_ceil(SHARDS).next_multiple_of(least).max(least)
}

/// The largest parts that units will have.
pub(super) fn sizes(evaluation: &Evaluation, facts: &Facts, shapes: &[Shape]) -> Sizes {
    let mut sizes = Sizes::default();
    for task in &evaluation.tasks {
        let Some(Ok(facts)) = facts.datasets.get(task.dataset()) else { continue };
        let Ok((_, texts)) = texts(task, task.dataset(), facts) else { continue };
        let shards = shapes.iter().map(|shape| shard_samples(facts.samples, shape.least_shard));
        let shard = shards.max().unwrap_or(1).min(facts.samples);
        let (block, queries) = match task {
            Task::ZeroShot { .. } => (shard, shard),
            Task::Retrieval { .. } => {
                (facts.samples.min(MOST_BLOCK_IMAGES), shard.max(texts.min(QUERY_SHARD)))
            }
        };
        sizes.shard = sizes.shard.max(shard.into());
        sizes.block = sizes.block.max(block.into());
        sizes.queries = sizes.queries.max(queries.into());
        sizes.part = sizes.part.max(texts.min(PART_TEXTS).into());
        sizes.texts = sizes.texts.max(texts.into());
    }
    sizes
}

/// Candidates to keep per query: what the largest k asks for.
fn depth(ks: &[u32], candidates: u32) -> u32 {
    ks.iter().copied().max().unwrap_or(1).min(candidates.max(1))
}
