//! The report as data; field for field what `report.json` says.

use indexmap::IndexMap;
use orchestrator_ledger::{Breach, Holder};
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
    /// Images that it read. Reports of before they were counted have zeros.
    #[serde(default)]
    pub images: Images,
}

/// Images of all results of one slice, by where they came from. A retried unit counts once, by the
/// attempt that was committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Images {
    /// Read and decoded.
    pub decoded: u64,
    /// Served from the node's cache of decoded samples.
    pub from_cache: u64,
    /// Most that was ever in that cache, which all slices of the node share.
    pub cache_peak_bytes: ByteCount,
    /// The cache never holds more; 0 where there is none.
    pub cache_limit_bytes: ByteCount,
}

/// Memory of one slice, over all executors that served it; `null` is not measured.
///
/// What came after the first layout may be absent in a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Weights as loaded, the most at once.
    pub weights_bytes: Option<ByteCount>,
    /// The executor's prediction of the peak of what was resident at once; the plan's without it.
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
    /// Share of the reserved memory that no tensor occupied at its peak, 0 to 1.
    pub fragmentation: Option<f64>,
    /// Allocations that were refused.
    pub ooms: Option<u64>,
    /// Time and peaks by phase.
    pub phases: Phases,
    /// The allocator and its settings.
    #[serde(default)]
    pub allocator: Option<String>,
    /// Times that the allocator had to return its cache and try again.
    #[serde(default)]
    pub retries: Option<u64>,
    /// Batches that were split because memory was refused.
    #[serde(default)]
    pub splits: Option<u64>,
    /// The host's side.
    #[serde(default)]
    pub host: HostMemory,
    /// Predictions beside their measurements.
    #[serde(default)]
    pub forecasts: Vec<Forecast>,
    /// Who held what at the last account.
    #[serde(default)]
    pub holders: Vec<Holder>,
    /// Who held what when most was leased.
    #[serde(default)]
    pub peak_holders: Vec<Holder>,
    /// Times at which more was in use than the quota allows.
    #[serde(default)]
    pub breaches: Vec<Breach>,
}

/// Host memory of a slice's process; the most that was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMemory {
    /// Resident pages that belong to no file.
    pub anonymous_bytes: Option<ByteCount>,
    /// Resident pages of mapped files: weights in the page cache, program code.
    pub mapped_bytes: Option<ByteCount>,
    /// Page-locked buffers.
    pub pinned_bytes: Option<ByteCount>,
    /// The tightest limit of the cgroups above the process, as last seen.
    pub cgroup_limit_bytes: Option<ByteCount>,
    /// Use of that cgroup.
    pub cgroup_used_bytes: Option<ByteCount>,
}

/// Memory by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phases {
    /// While weights were read.
    pub load: PhaseMemory,
    /// During probes and first forward passes.
    pub warm_up: PhaseMemory,
    /// While samples were evaluated.
    pub run: PhaseMemory,
}

/// Cost of one phase, over all executors of a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseMemory {
    /// Time spent in it.
    pub seconds: Option<f64>,
    /// Peak of what tensors occupied.
    pub allocated_peak_bytes: Option<ByteCount>,
    /// Peak of what the allocator had taken.
    pub reserved_peak_bytes: Option<ByteCount>,
    /// Peak of the device, less what was in use before.
    pub device_peak_bytes: Option<ByteCount>,
    /// Peak of the resident set.
    pub host_peak_bytes: Option<ByteCount>,
}

/// A prediction beside its measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// The component.
    pub component: Component,
    /// The model's folder, last part.
    pub model: String,
    /// Its number format.
    pub precision: Precision,
    /// Rows of one forward pass.
    pub rows: u32,
    /// Tokens of one row.
    pub tokens: u32,
    /// Predicted peak of weights and activations.
    pub predicted_bytes: ByteCount,
    /// The largest measured peak of the same.
    pub measured_bytes: Option<ByteCount>,
    /// How far the prediction is above (or, negative, below) the measurement, in per cent of it.
    pub error_percent: Option<f64>,
    /// Probes that the prediction was corrected by.
    pub probes: u32,
    /// Why this many rows.
    pub reason: String,
}

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
