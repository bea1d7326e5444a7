//! The report as data; field for field what `report.json` says.

use indexmap::IndexMap;
use orchestrator_tasks::Metrics;
use orchestrator_types::{
    ByteCount, CaptionChoice, Component, DatasetName, DeviceId, Digest, NodeName, Precision, RunId,
    SliceId,
};
use serde::{Deserialize, Serialize};

use crate::evidence::{Batch, QuarantinedSample, UnfinishedUnit};

/// The report of one run. The order of the fields is the order in `report.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name and version of this layout, [`SCHEMA`](crate::json::SCHEMA).
    pub schema: String,
    /// The run.
    pub run: RunId,
    /// The evaluation's name.
    pub name: String,
    /// Whether every sample and every unit has its result.
    pub complete: bool,
    /// One entry per point of the sweep.
    pub trials: Vec<Trial>,
    /// One entry per slice.
    pub nodes: Vec<Node>,
    /// What exactly was evaluated.
    pub provenance: Provenance,
    /// Samples that no figure contains, and why.
    pub quarantined: Vec<QuarantinedSample>,
    /// Units without a result, and why.
    pub unfinished: Vec<UnfinishedUnit>,
}

/// One point of the sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The model's path as in eval.yaml.
    pub model: String,
    /// The precision that was used.
    pub precision: Precision,
    /// The batch sizes that were used.
    pub batch: Batch,
    /// The tasks, in the order of eval.yaml.
    pub tasks: Vec<Task>,
    /// Time from the first attempt's start to the last result, in seconds.
    pub seconds: f64,
    /// Images encoded per second of that time; `null` if none was.
    pub images_per_second: Option<f64>,
}

/// One task of one trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// `zero_shot` or `retrieval`.
    pub task: String,
    /// The dataset.
    pub dataset: DatasetName,
    /// Which captions took part; left out for a task without captions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub captions: Option<CaptionChoice>,
    /// The figures.
    pub metrics: Metrics,
    /// What they are made of.
    pub samples: Samples,
}

/// Samples (images) of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Samples {
    /// In the dataset.
    pub total: u64,
    /// In the figures.
    pub evaluated: u64,
    /// Taken out.
    pub quarantined: u64,
}

/// One slice of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// The host.
    pub node: NodeName,
    /// The slice.
    pub slice: SliceId,
    /// Its device.
    pub device: DeviceId,
    /// The ceiling it was given.
    pub quota_bytes: Option<ByteCount>,
    /// The components it held.
    pub components: Vec<Component>,
    /// Its memory.
    pub memory: Memory,
}

/// Memory of one slice; `null` is not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Weights as loaded.
    pub weights_bytes: Option<ByteCount>,
    /// The plan's prediction of the peak.
    pub predicted_peak_bytes: Option<ByteCount>,
    /// Peak of what tensors occupied.
    pub allocated_peak_bytes: Option<ByteCount>,
    /// Peak of what the allocator had taken from the device.
    pub reserved_peak_bytes: Option<ByteCount>,
    /// Peak of the device, less what was in use before the executor started.
    pub device_peak_bytes: Option<ByteCount>,
    /// Device memory that the allocator does not know of.
    pub outside_allocator_bytes: Option<ByteCount>,
    /// Peak of the process's resident memory.
    pub host_peak_bytes: Option<ByteCount>,
    /// Share of the reserved memory that was free but unusable, 0 to 1.
    pub fragmentation: Option<f64>,
    /// Allocations that were refused.
    pub ooms: Option<u64>,
    /// The same by phase.
    pub phases: Phases,
}

/// Memory by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phases {
    /// While weights were read.
    pub load: PhaseMemory,
    /// During the first forward passes.
    pub warm_up: PhaseMemory,
    /// While samples were evaluated.
    pub run: PhaseMemory,
}

/// Memory of one phase. Nothing is measured by phase yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseMemory {}

/// What exactly was evaluated, with what.
///
/// The five fields in front speak for the whole run. With one model (or dataset) each is that
/// model's own value; with several, a digest is the BLAKE3 of the lines `<digest> <name>\n` in the
/// order of eval.yaml, and the preprocessings are listed with their models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Digest of the weights.
    pub weights_blake3: Option<Digest>,
    /// Preprocessing, in words.
    pub preprocess: Option<String>,
    /// Digest of the tokenizer.
    pub tokenizer_blake3: Option<Digest>,
    /// Digest of class labels and templates; `null` if no dataset has them.
    pub templates_blake3: Option<Digest>,
    /// Digest of the samples and of what is said of them.
    pub dataset_blake3: Option<Digest>,
    /// Version of the orchestrator.
    pub orchestrator: String,
    /// Version of libtorch; `null` if no executor came up.
    pub libtorch: Option<String>,
    /// Version of the GPU driver; `null` without a GPU.
    pub driver: Option<String>,
    /// Each model by itself.
    pub models: IndexMap<String, ModelProvenance>,
    /// Each dataset by itself.
    pub datasets: IndexMap<DatasetName, DatasetProvenance>,
}

/// What identifies a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelProvenance {
    /// Digest of its weights.
    pub weights_blake3: Digest,
    /// Its preprocessing, in words.
    pub preprocess: String,
    /// Digest of its tokenizer's files.
    pub tokenizer_blake3: Digest,
}

/// What identifies a dataset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DatasetProvenance {
    /// Digest of class labels and templates, where it has them.
    pub templates_blake3: Option<Digest>,
    /// Digest of its samples and of what is said of them: classes, labels, templates, captions.
    pub dataset_blake3: Digest,
}
