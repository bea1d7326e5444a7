//! Evidence → report.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use orchestrator_tasks::{MergeError, Partial};
use orchestrator_types::{DatasetName, Digest, SampleId, TrialId};

use crate::{
    evidence::{
        DatasetEvidence, Evidence, ModelEvidence, NodeEvidence, QuarantinedSample, TaskEvidence,
        TrialEvidence,
    },
    json::SCHEMA,
    memory,
    report::{DatasetProvenance, ModelProvenance, Node, Provenance, Report, Samples, Task, Trial},
};

/// Evidence that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FoldError {
    /// A task holds results that are not its own.
    #[error("the results of {task} on {dataset} in trial {trial} do not belong together")]
    Merge {
        /// The task.
        task: &'static str,
        /// Its dataset.
        dataset: DatasetName,
        /// Its trial.
        trial: TrialId,
        /// What does not fit.
        #[source]
        source: MergeError,
    },
}

/// Folds what a run has committed into its report.
pub fn fold(evidence: Evidence) -> Result<Report, FoldError> {
    let quarantined = each_once(evidence.quarantined);
    let mut trials = evidence.trials;
    trials.sort_by_key(|trial| trial.trial);
    let trials = trials
        .into_iter()
        .map(|trial| fold_trial(trial, &quarantined))
        .collect::<Result<Vec<_>, _>>()?;
    let driver = memory::drivers(evidence.nodes.iter().map(|node| &node.memory));
    let mut nodes: Vec<Node> = evidence.nodes.into_iter().map(node).collect();
    nodes.sort_by(|a, b| (&a.node, &a.slice).cmp(&(&b.node, &b.slice)));
    let mut unfinished = evidence.unfinished;
    unfinished.sort();
    unfinished.dedup();
    let settled = trials.iter().flat_map(|trial| &trial.tasks).all(is_settled);
    Ok(Report {
        schema: SCHEMA.to_owned(),
        run: evidence.run,
        name: evidence.name,
        complete: quarantined.is_empty() && unfinished.is_empty() && settled,
        trials,
        nodes,
        provenance: Provenance {
            orchestrator: evidence.orchestrator,
            libtorch: evidence.libtorch,
            driver,
            ..provenance(evidence.models, evidence.datasets)
        },
        quarantined,
        unfinished,
    })
}

/// Sorted; a sample that was reported twice keeps the first reason.
fn each_once(quarantined: Vec<QuarantinedSample>) -> Vec<QuarantinedSample> {
    let mut sorted = quarantined;
    sorted.sort();
    let mut seen = BTreeMap::<(DatasetName, SampleId), String>::new();
    for QuarantinedSample { dataset, sample, reason } in sorted {
        seen.entry((dataset, sample)).or_insert(reason);
    }
    seen.into_iter()
        .map(|((dataset, sample), reason)| QuarantinedSample { dataset, sample, reason })
        .collect()
}

fn fold_trial(trial: TrialEvidence, quarantined: &[QuarantinedSample]) -> Result<Trial, FoldError> {
    let TrialEvidence { trial, model, precision, batch, tasks, elapsed, images } = trial;
    let tasks = tasks
        .into_iter()
        .map(|task| fold_task(task, trial, quarantined))
        .collect::<Result<_, _>>()?;
    let seconds = elapsed.as_secs_f64();
    let measured = images > 0 && seconds > 0.0;
    let images_per_second = measured.then(|| images as f64 / seconds);
    Ok(Trial { model, precision, batch, tasks, seconds, images_per_second })
}

fn fold_task(
    task: TaskEvidence,
    trial: TrialId,
    quarantined: &[QuarantinedSample],
) -> Result<Task, FoldError> {
    let TaskEvidence { kind, dataset, samples, partials } = task;
    let merged = partials
        .into_iter()
        .try_fold(kind.empty(), Partial::merge)
        .and_then(|partial| Ok((kind.metrics(&partial)?, partial.evaluated())));
    match merged {
        Ok((metrics, evaluated)) => {
            let missing = quarantined.iter().filter(|sample| sample.dataset == dataset).count();
            let samples = Samples { total: samples, evaluated, quarantined: missing as u64 };
            let (task, captions) = (kind.name().to_owned(), kind.captions());
            Ok(Task { task, dataset, captions, metrics, samples })
        }
        Err(source) => Err(FoldError::Merge { task: kind.name(), dataset, trial, source }),
    }
}

/// Whether every sample has its result and every figure a value.
fn is_settled(task: &Task) -> bool {
    task.samples.evaluated == task.samples.total && task.metrics.0.values().all(Option::is_some)
}

fn node(evidence: NodeEvidence) -> Node {
    let NodeEvidence { node, slice, device, quota, mut components, memory, images } = evidence;
    components.sort();
    components.dedup();
    let (in_force, memory) = memory::fold(memory);
    Node { node, slice, device, quota_bytes: in_force.or(quota), components, memory, images }
}

fn provenance(
    models: IndexMap<String, ModelEvidence>,
    datasets: IndexMap<DatasetName, DatasetEvidence>,
) -> Provenance {
    let models: IndexMap<String, ModelProvenance> = models
        .into_iter()
        .map(|(path, ModelEvidence { weights, tokenizer, preprocess })| {
            let (weights_blake3, tokenizer_blake3) = (weights, tokenizer);
            (path, ModelProvenance { weights_blake3, preprocess, tokenizer_blake3 })
        })
        .collect();
    let datasets: IndexMap<DatasetName, DatasetProvenance> = datasets
        .into_iter()
        .map(|(name, DatasetEvidence { samples, templates })| {
            let provenance =
                DatasetProvenance { templates_blake3: templates, dataset_blake3: samples };
            (name, provenance)
        })
        .collect();
    let by_name = || datasets.iter().map(|(name, dataset)| (name.as_str(), dataset));
    let by_path = || models.iter().map(|(path, model)| (path.as_str(), model));
    Provenance {
        weights_blake3: joint(by_path().map(|(path, model)| (path, model.weights_blake3))),
        preprocess: preprocessings(&models),
        tokenizer_blake3: joint(by_path().map(|(path, model)| (path, model.tokenizer_blake3))),
        templates_blake3: joint(
            by_name().filter_map(|(name, dataset)| Some((name, dataset.templates_blake3?))),
        ),
        dataset_blake3: joint(by_name().map(|(name, dataset)| (name, dataset.dataset_blake3))),
        orchestrator: String::new(),
        libtorch: None,
        driver: None,
        models,
        datasets,
    }
}

/// One digest for all: itself if it is alone, else of the list of them.
fn joint<'a>(digests: impl Iterator<Item = (&'a str, Digest)>) -> Option<Digest> {
    let digests: Vec<_> = digests.collect();
    match digests[..] {
        [] => None,
        [(_, only)] => Some(only),
        _ => {
            let lines: Vec<String> =
                digests.iter().map(|(name, digest)| format!("{digest} {name}\n")).collect();
            Some(Digest::of(lines.concat().as_bytes()))
        }
    }
}

fn preprocessings(models: &IndexMap<String, ModelProvenance>) -> Option<String> {
    let (_, first) = models.first()?;
    if models.values().all(|model| model.preprocess == first.preprocess) {
        return Some(first.preprocess.clone());
    }
    let each = models.iter().map(|(path, model)| format!("{path}: {}", model.preprocess));
    Some(each.collect::<Vec<_>>().join("; "))
}
