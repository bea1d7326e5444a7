//! Where a component's bytes go: the document of `orchestrator profile`.

use orchestrator_types::{ByteCount, Component, DeviceId, Precision};
use serde::{Deserialize, Serialize};

use crate::PhaseReadings;

/// Name and version of the document that a profile is written as.
pub const PROFILE_SCHEMA: &str = "orchestrator.profile/1";

/// The profile of an evaluation: one entry per model, precision and component.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// [`PROFILE_SCHEMA`].
    pub schema: String,
    /// The evaluation's name.
    pub name: String,
    /// In the order of trials, text tower first.
    pub components: Vec<ComponentProfile>,
}

/// One component in one precision on one device, with synthetic input of the real shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComponentProfile {
    /// The component.
    pub component: Component,
    /// The model's path as in eval.yaml.
    pub model: String,
    /// Its number format.
    pub precision: Precision,
    /// The device.
    pub device: DeviceId,
    /// The ceiling that it was measured under.
    pub quota_bytes: ByteCount,
    /// The allocator and its settings, as one line.
    pub allocator: String,
    /// Rows of the traced forward pass.
    pub rows: u32,
    /// Tokens of one row.
    pub tokens: u32,
    /// Weights as loaded.
    pub weights_bytes: ByteCount,
    /// Peak of the traced forward pass, weights included.
    pub peak_bytes: ByteCount,
    /// What was predicted for it.
    pub predicted_bytes: ByteCount,
    /// Largest first: by operator (`aten::linear`).
    pub operators: Vec<Consumer>,
    /// In the order of computation: by module (`embeddings`, `block 0`, …, `head`).
    pub modules: Vec<Consumer>,
    /// Cost of loading, warm-up and the traced passes.
    pub phases: PhaseReadings,
    /// Batch against memory and speed, smallest first.
    pub curve: Vec<CurvePoint>,
    /// The rows that the curve speaks for.
    pub best: BestBatch,
    /// Share of the reserved memory that no tensor occupied at its peak, 0 to 1.
    pub fragmentation: Option<f64>,
    /// Peak of the same pass if attention were computed with all scores in memory, predicted.
    pub math_attention_peak_bytes: ByteCount,
    /// Bytes of scores, their softmax and the two products of one layer in that case.
    pub math_attention_bytes: ByteCount,
    /// The traced pass, allocation by allocation, thinned to at most 2,000 points.
    pub timeline: Vec<TimelinePoint>,
}

/// What one operator or module took from the allocator during one forward pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumer {
    /// Its name.
    pub name: String,
    /// Calls.
    pub calls: u64,
    /// Sum of all its allocations.
    pub allocated_bytes: ByteCount,
    /// Those that were returned before it ended.
    pub temporary_bytes: ByteCount,
    /// Those that outlived it: its outputs.
    pub output_bytes: ByteCount,
    /// Largest single allocation.
    pub largest_bytes: ByteCount,
    /// What of it was held when the whole pass was at its peak.
    pub at_peak_bytes: ByteCount,
}

/// One batch size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Rows of a forward pass.
    pub rows: u32,
    /// Predicted peak, weights included.
    pub predicted_bytes: ByteCount,
    /// Measured peak; `None` where it was not tried because it would not fit.
    pub measured_bytes: Option<ByteCount>,
    /// Rows per second; `None` likewise.
    pub rows_per_second: Option<f64>,
}

/// The smallest batch within 2 % of the best rate that fits the quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BestBatch {
    /// Rows of a forward pass.
    pub rows: u32,
    /// Why, in a sentence.
    pub reason: String,
}

/// Live bytes after one allocation or release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelinePoint {
    /// Microseconds since the pass began.
    pub at_us: u64,
    /// Live bytes of the pass, weights excluded.
    pub live_bytes: ByteCount,
    /// The operator that did it.
    pub operator: String,
    /// The module that it ran in.
    pub module: String,
}
