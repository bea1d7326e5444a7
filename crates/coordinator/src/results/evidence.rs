//! What is stored of a run → [`Evidence`], the input of the report.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use indexmap::IndexMap;
use orchestrator_plan::{TaskPlan, TextSet, TrialPlan, Unit, UnitRange, Work};
use orchestrator_report::{
    AccountEvidence, Batch, DatasetEvidence, Evidence, Images, MemoryEvidence, ModelEvidence,
    NodeEvidence, QuarantinedSample, TaskEvidence, TrialEvidence, UnfinishedUnit, UnitOutcome,
};
use orchestrator_run::{ImageCounts, UnitResult};
use orchestrator_spec::Task;
use orchestrator_tasks::{Partial, TaskKind};
use orchestrator_types::{ByteCount, Component, DatasetName, Digest, SliceId, TrialId, UnitId};

use super::{Ended, ResultsError};
use crate::store::{SliceRow, UnitRow, UnitStage};

/// Everything that the report is made of.
pub(super) fn gather(ended: &Ended) -> Result<Evidence, ResultsError> {
    let plan = &ended.documents.plan;
    let trials = plan.trials.iter().map(|plan| trial(ended, plan));
    Ok(Evidence {
        run: ended.summary.id.clone(),
        name: ended.summary.name.clone(),
        trials: trials.collect::<Result<_, _>>()?,
        nodes: ended.slices.iter().map(|slice| node(ended, slice)).collect(),
        models: models(ended),
        datasets: datasets(ended),
        orchestrator: ended.documents.build.clone(),
        libtorch: libtorch(&ended.slices),
        quarantined: quarantined(ended),
        unfinished: unfinished(ended),
    })
}

fn trial(ended: &Ended, plan: &TrialPlan) -> Result<TrialEvidence, ResultsError> {
    let tasks = plan.tasks.iter().map(|plan| task(ended, plan)).collect::<Result<_, _>>()?;
    let images: BTreeSet<UnitId> = plan.tasks.iter().flat_map(|task| task.images.iter()).collect();
    let encoded = images.iter().filter_map(|unit| ended.result(*unit));
    Ok(TrialEvidence {
        trial: plan.id,
        model: plan.model.clone(),
        precision: plan.precision,
        batch: Batch {
            vision: dispatched(ended, plan, |task| task.images).unwrap_or(plan.batch.vision),
            text: dispatched(ended, plan, |task| task.texts).unwrap_or(plan.batch.text),
        },
        tasks,
        elapsed: elapsed(ended, plan),
        images: encoded.map(|result| result.rows).sum(),
    })
}

/// The most rows that went through the tower at once, where results tell.
fn dispatched(ended: &Ended, plan: &TrialPlan, units: fn(&TaskPlan) -> UnitRange) -> Option<u32> {
    let units = plan.tasks.iter().flat_map(|task| units(task).iter());
    let rows = units.filter_map(|unit| Some(ended.result(unit)?.rows_per_dispatch));
    rows.filter(|rows| *rows > 0).max()
}

fn task(ended: &Ended, plan: &TaskPlan) -> Result<TaskEvidence, ResultsError> {
    let mut partials = Vec::new();
    for unit in plan.rankings.iter().flat_map(|ranking| ranking.units.iter()) {
        if let Some(result) = ended.result(unit) {
            let partial: Partial = serde_json::from_str(&result.partial)
                .map_err(|error| ResultsError::Unit { unit, problem: error.to_string() })?;
            partials.push(partial);
        }
    }
    let kind = match &plan.task {
        Task::ZeroShot { top_k, .. } => TaskKind::ZeroShot { top_k: top_k.clone() },
        Task::Retrieval { recall_at, captions, .. } => {
            TaskKind::Retrieval { recall_at: recall_at.clone(), captions: *captions }
        }
    };
    let (dataset, samples) = (plan.task.dataset().clone(), plan.samples.into());
    Ok(TaskEvidence { kind, dataset, samples, partials })
}

/// Every unit that a trial is made of, once.
fn units_of(plan: &TrialPlan) -> BTreeSet<UnitId> {
    let ranges = plan.tasks.iter().flat_map(|task| {
        let rankings = task.rankings.iter().map(|ranking| ranking.units);
        [task.images, task.texts].into_iter().chain(rankings)
    });
    ranges.flat_map(UnitRange::iter).collect()
}

/// Time in which at least one unit of the trial was in work: from grant to commit, without the
/// pauses of an interrupted run and without the time that went to other trials.
fn elapsed(ended: &Ended, plan: &TrialPlan) -> Duration {
    let units = units_of(plan);
    let worked = ended.units.iter().filter(|row| row.stage == UnitStage::Committed);
    let mut spans: Vec<(i64, i64)> = worked
        .filter(|row| units.contains(&row.unit))
        .filter_map(|row| Some((row.leased_unix_ms?, row.ended_unix_ms?)))
        .collect();
    spans.sort_unstable();
    Duration::from_millis(union(&spans))
}

/// Length of the union of sorted spans.
fn union(spans: &[(i64, i64)]) -> u64 {
    let (mut total, mut reached) = (0_u64, i64::MIN);
    for &(start, end) in spans {
        let fresh = start.max(reached);
        total += u64::try_from(end.saturating_sub(fresh)).unwrap_or(0);
        reached = reached.max(end);
    }
    total
}

/// A slice, with the components whose units it really committed.
fn node(ended: &Ended, slice: &SliceRow) -> NodeEvidence {
    let SliceRow { placement, libtorch: _ } = slice;
    let own = || {
        let rows = ended.units.iter().filter(|row| row.slice.as_ref() == Some(&placement.slice));
        rows.filter_map(|row| Some((row, row.result.as_ref()?)))
    };
    let unit = |row: &UnitRow| ended.documents.plan.unit(row.unit);
    let components: BTreeSet<Component> =
        own().filter_map(|(row, _)| Some(unit(row)?.component())).collect();
    let claims = placement.claims.iter().filter(|claim| components.contains(&claim.component));
    let predicted = claims.map(|claim| claim.peak().as_u64()).sum();
    let largest = |bytes: fn(&orchestrator_run::ExecutorReading) -> ByteCount| {
        own().map(|(_, result)| bytes(&result.reading)).max()
    };
    NodeEvidence {
        node: placement.node.clone(),
        slice: placement.slice.clone(),
        device: placement.device.clone(),
        quota: Some(placement.quota_bytes),
        components: components.into_iter().collect(),
        memory: MemoryEvidence {
            planned_peak: Some(ByteCount::bytes(predicted)),
            weights: largest(|reading| reading.weights_bytes),
            host_peak: largest(|reading| reading.host_peak_bytes),
            accounts: accounts(ended, &placement.slice, own()),
        },
        images: images(own().map(|(_, result)| result.images)),
    }
}

/// What the results of one slice tell of their images.
fn images(counts: impl Iterator<Item = ImageCounts>) -> Images {
    counts.fold(Images::default(), |sum, it| Images {
        decoded: sum.decoded + it.decoded,
        from_cache: sum.from_cache + it.from_cache,
        cache_peak_bytes: sum.cache_peak_bytes.max(it.cache_peak_bytes),
        cache_limit_bytes: sum.cache_limit_bytes.max(it.cache_limit_bytes),
    })
}

/// Those of the slice's executors, and those that results of older stores hold.
fn accounts<'a>(
    ended: &Ended,
    slice: &SliceId,
    own: impl Iterator<Item = (&'a UnitRow, &'a UnitResult)>,
) -> Vec<AccountEvidence> {
    let known = ended.accounts.get(slice).into_iter().flatten().cloned();
    let old = own.filter_map(|(row, result)| {
        Some((row.ended_unix_ms.unwrap_or_default(), result.account.clone()?))
    });
    let evidence = |(committed_unix_ms, account)| AccountEvidence { committed_unix_ms, account };
    known.chain(old).map(evidence).collect()
}

fn models(ended: &Ended) -> IndexMap<String, ModelEvidence> {
    let documents = &ended.documents;
    let models = documents.evaluation.models.iter().zip(&documents.facts.models);
    models
        .filter_map(|(model, facts)| {
            let facts = facts.as_ref().ok()?;
            let evidence = ModelEvidence {
                weights: facts.weights_blake3,
                tokenizer: facts.tokenizer_blake3,
                preprocess: facts.preprocess.clone(),
            };
            Some((model.path.clone(), evidence))
        })
        .collect()
}

fn datasets(ended: &Ended) -> IndexMap<DatasetName, DatasetEvidence> {
    let documents = &ended.documents;
    let names = documents.evaluation.datasets.keys();
    names
        .filter_map(|name| {
            let facts = documents.facts.datasets.get(name)?.as_ref().ok()?;
            let samples = samples_digest(ended, name, facts.manifest_digest);
            Some((name.clone(), DatasetEvidence { samples, templates: facts.templates_digest }))
        })
        .collect()
}

/// BLAKE3 over the manifest's digest and the digests of the shards' bytes in order, as the first
/// model read them; the manifest's alone where not every shard was read.
fn samples_digest(ended: &Ended, dataset: &DatasetName, manifest: Digest) -> Digest {
    let tasks = ended.documents.plan.trials.iter().flat_map(|trial| &trial.tasks);
    let mut images = tasks.filter(|task| task.task.dataset() == dataset).map(|task| task.images);
    let whole = images.find_map(|units| {
        let shards = units.iter().map(|unit| ended.result(unit)?.samples);
        shards.collect::<Option<Vec<Digest>>>()
    });
    let Some(shards) = whole else { return manifest };
    let mut hasher = blake3::Hasher::new();
    hasher.update(manifest.as_bytes());
    for shard in shards {
        hasher.update(shard.as_bytes());
    }
    hasher.finalize().into()
}

/// The version; every version, where workers differ.
fn libtorch(slices: &[SliceRow]) -> Option<String> {
    let versions: BTreeSet<&str> = slices.iter().map(|slice| slice.libtorch.as_str()).collect();
    let known: Vec<&str> = versions.into_iter().filter(|version| !version.is_empty()).collect();
    (!known.is_empty()).then(|| known.join(", "))
}

fn quarantined(ended: &Ended) -> Vec<QuarantinedSample> {
    let mut samples = Vec::new();
    for unit in ended.documents.plan.units.iter() {
        let (Work::EncodeImages(work), Some(result)) = (&unit.work, ended.result(unit.id)) else {
            continue;
        };
        samples.extend(result.quarantined.iter().map(|sample| QuarantinedSample {
            dataset: work.dataset.name.clone(),
            sample: sample.sample.clone(),
            reason: sample.reason.clone(),
        }));
    }
    samples
}

fn unfinished(ended: &Ended) -> Vec<UnfinishedUnit> {
    let units = &ended.documents.plan.units;
    let trials = trials_of_units(ended);
    let open = units.ids().filter(|unit| ended.result(*unit).is_none());
    let trial = |unit: &Unit| trials.get(&unit.id).copied().flatten();
    open.filter_map(|unit| units.get(unit))
        .map(|unit| unfinished_unit(&unit, ended.row(unit.id), trial(&unit)))
        .collect()
}

fn unfinished_unit(unit: &Unit, row: Option<&UnitRow>, trial: Option<TrialId>) -> UnfinishedUnit {
    let failure = row.and_then(|row| row.failure.clone());
    let failed = row.is_some_and(|row| row.stage == UnitStage::Failed);
    let (class, message) = failure.unzip();
    UnfinishedUnit {
        unit: unit.id,
        trial,
        what: what(unit),
        outcome: if failed { UnitOutcome::Failed } else { UnitOutcome::Cancelled },
        class,
        reason: message.unwrap_or_else(|| "the run was cancelled first".to_owned()),
    }
}

/// The trial of each unit; none for a unit of several.
fn trials_of_units(ended: &Ended) -> BTreeMap<UnitId, Option<TrialId>> {
    let mut trials = BTreeMap::new();
    for trial in &ended.documents.plan.trials {
        for unit in units_of(trial) {
            let shared = |of: &mut Option<TrialId>| *of = None;
            trials.entry(unit).and_modify(shared).or_insert(Some(trial.id));
        }
    }
    trials
}

/// What a unit was to do, in words.
fn what(unit: &Unit) -> String {
    match &unit.work {
        Work::EncodeTexts(work) => {
            let texts = match work.texts {
                TextSet::Prompts => "prompts",
                TextSet::FirstCaptions => "first captions",
                TextSet::AllCaptions => "captions",
            };
            let (part, parts, dataset) = (work.part + 1, work.parts, &work.dataset.name);
            format!("encode part {part} of {parts} of the {texts} of {dataset}")
        }
        Work::EncodeImages(work) => {
            format!("encode images {} of {}", work.shard, work.dataset.name)
        }
        Work::Rank(work) => format!("rank queries {} of {}", work.queries, work.dataset.name),
    }
}

#[cfg(test)]
mod tests {
    use super::union;

    #[test]
    fn overlapping_spans_count_once_and_pauses_not_at_all() {
        assert_eq!(union(&[]), 0);
        assert_eq!(union(&[(0, 10), (2, 5), (8, 12), (100, 101)]), 13);
        assert_eq!(union(&[(5, 3)]), 0, "a clock that was set back");
    }
}
