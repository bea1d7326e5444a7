//! What a run has committed: the input of the fold.

use std::time::Duration;

use indexmap::IndexMap;
use orchestrator_ledger::Account;
use orchestrator_tasks::{Partial, TaskKind};
use orchestrator_types::{
    ByteCount, Component, DatasetName, DeviceId, Digest, FailureClass, NodeName, Precision, RunId,
    SampleId, SliceId, TrialId, UnitId,
};
use serde::{Deserialize, Serialize};

use crate::report::Images;

/// Everything that the report of one run is made of.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The run.
    pub run: RunId,
    /// The evaluation's name.
    pub name: String,
    /// Each trial of the sweep, those without any result too.
    pub trials: Vec<TrialEvidence>,
    /// Each slice that took part.
    pub nodes: Vec<NodeEvidence>,
    /// What was evaluated, by the model's path in eval.yaml.
    pub models: IndexMap<String, ModelEvidence>,
    /// What it was evaluated on.
    pub datasets: IndexMap<DatasetName, DatasetEvidence>,
    /// Version of the orchestrator.
    pub orchestrator: String,
    /// Version of libtorch, once an executor has named it.
    pub libtorch: Option<String>,
    /// Samples that were taken out.
    pub quarantined: Vec<QuarantinedSample>,
    /// Units without a result, now that nothing runs any more.
    pub unfinished: Vec<UnfinishedUnit>,
}

/// One point of the sweep.
#[derive(Clone, Debug)]
pub struct TrialEvidence {
    /// Its position in the product of the axes.
    pub trial: TrialId,
    /// The model's path as in eval.yaml.
    pub model: String,
    /// The precision that was used.
    pub precision: Precision,
    /// The batch sizes that were used.
    pub batch: Batch,
    /// The tasks, in the order of eval.yaml.
    pub tasks: Vec<TaskEvidence>,
    /// Time from the first attempt's start to the last result.
    pub elapsed: Duration,
    /// Images encoded in that time; zero if all came from earlier results.
    pub images: u64,
}

/// Samples per forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Images.
    pub vision: u32,
    /// Texts.
    pub text: u32,
}

/// One task of one trial.
#[derive(Clone, Debug)]
pub struct TaskEvidence {
    /// The task and what it reports.
    pub kind: TaskKind,
    /// The dataset it runs on.
    pub dataset: DatasetName,
    /// Samples of the dataset.
    pub samples: u64,
    /// One result per finished unit, in any order.
    pub partials: Vec<Partial>,
}

/// One slice of the cluster and what it held.
#[derive(Clone, Debug)]
pub struct NodeEvidence {
    /// The host.
    pub node: NodeName,
    /// The slice.
    pub slice: SliceId,
    /// Its device.
    pub device: DeviceId,
    /// The ceiling it was given.
    pub quota: Option<ByteCount>,
    /// The components it held.
    pub components: Vec<Component>,
    /// What was measured of its memory.
    pub memory: MemoryEvidence,
    /// The images of its results.
    pub images: Images,
}

/// Memory of one slice.
#[derive(Clone, Debug, Default)]
pub struct MemoryEvidence {
    /// The plan's prediction of the peak.
    pub planned_peak: Option<ByteCount>,
    /// Largest weights that a result tells of.
    pub weights: Option<ByteCount>,
    /// Largest resident set that a result tells of.
    pub host_peak: Option<ByteCount>,
    /// The accounts of all committed results, in any order.
    pub accounts: Vec<AccountEvidence>,
}

/// An executor's account of its memory.
#[derive(Clone, Debug)]
pub struct AccountEvidence {
    /// When its result was committed, milliseconds of Unix time.
    pub committed_unix_ms: i64,
    /// The account.
    pub account: Account,
}

/// What identifies a model.
#[derive(Clone, Debug)]
pub struct ModelEvidence {
    /// Digest of its weights.
    pub weights: Digest,
    /// Digest of its tokenizer's files.
    pub tokenizer: Digest,
    /// Its preprocessing, in words.
    pub preprocess: String,
}

/// What identifies a dataset.
#[derive(Clone, Debug)]
pub struct DatasetEvidence {
    /// Digest of its samples and of what is said of them: classes, labels, templates, captions.
    pub samples: Digest,
    /// Digest of class labels and templates, where it has them.
    pub templates: Option<Digest>,
}

/// A sample that no result contains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct QuarantinedSample {
    /// Its dataset.
    pub dataset: DatasetName,
    /// The sample.
    pub sample: SampleId,
    /// Why.
    pub reason: String,
}

/// A unit of work without a result.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnfinishedUnit {
    /// The unit.
    pub unit: UnitId,
    /// The trial it belongs to, if to one alone.
    pub trial: Option<TrialId>,
    /// What it was to do, in words: `encode images 0..256 of fluent`.
    pub what: String,
    /// How it ended.
    pub outcome: UnitOutcome,
    /// The class of the last failure, if there was one.
    pub class: Option<FailureClass>,
    /// The last failure's message, or who cancelled.
    pub reason: String,
}

/// How a unit ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitOutcome {
    /// No attempt succeeded.
    Failed,
    /// It was given up because it takes executors down with it.
    Quarantined,
    /// The run ended first.
    Cancelled,
}

impl UnitOutcome {
    /// The outcome as a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Quarantined => "quarantined",
            Self::Cancelled => "cancelled",
        }
    }
}
