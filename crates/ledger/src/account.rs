//! What an executor tells of its memory: readings, beside what was predicted and who holds what.
//!
//! A document: it travels as JSON with every result, is stored with it, and the report's memory
//! tables are folded from it. Byte amounts are [`ByteCount`]s; `None` means not measured on this
//! device.

use orchestrator_types::{ByteCount, Component, DeviceId, Phase, Precision};
use serde::{Deserialize, Serialize};

use crate::Holder;

/// Memory of one executor, since it started unless a field says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// Tells executors apart that served the same slice one after the other: when it started,
    /// milliseconds of Unix time.
    pub started_at_unix_ms: i64,
    /// The device.
    pub device: DeviceId,
    /// Version of the GPU's driver. Accounts of before it was told have none.
    #[serde(default)]
    pub driver: Option<String>,
    /// The ceiling in force at the time of the account.
    pub quota_bytes: ByteCount,
    /// The allocator and its settings, as one line.
    pub allocator: String,
    /// Device memory that others used before the executor started.
    pub baseline_bytes: Option<ByteCount>,
    /// Weights now resident.
    pub weights_bytes: ByteCount,
    /// Predicted peak of everything that was resident at once, so far the largest.
    pub predicted_peak_bytes: ByteCount,
    /// Peak of what tensors occupied.
    pub allocated_peak_bytes: ByteCount,
    /// Peak of what the allocator had taken from the device. On the CPU the same as allocated.
    pub reserved_peak_bytes: ByteCount,
    /// Peak of the device's use, less the baseline.
    pub device_peak_bytes: Option<ByteCount>,
    /// Device memory of the process that the allocator does not know of: context, kernels, handles.
    pub outside_allocator_bytes: Option<ByteCount>,
    /// Host memory of the process.
    pub host: HostReading,
    /// Share of the reserved memory that no tensor occupied at the peak of reserved memory, 0 to 1.
    pub fragmentation: Option<f64>,
    /// Allocations that were refused.
    pub ooms: u64,
    /// Times that the allocator had to return its cache and try again.
    pub retries: u64,
    /// Batches that were split because memory was refused.
    pub splits: u64,
    /// By phase.
    pub phases: PhaseReadings,
    /// What was predicted, with what was then measured, by component, shape and precision.
    pub forecasts: Vec<ForecastReading>,
    /// Who holds what now.
    pub holders: Vec<Holder>,
    /// Who held what when most was leased. Accounts of before it existed have none.
    #[serde(default)]
    pub peak_holders: Vec<Holder>,
    /// Times at which more was in use than the quota allows.
    pub breaches: Vec<Breach>,
    /// Readings over time, since the account before this one.
    pub samples: Vec<Sample>,
}

/// Host memory of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReading {
    /// Resident set now.
    pub resident_bytes: ByteCount,
    /// Largest resident set.
    pub resident_peak_bytes: ByteCount,
    /// Resident pages that belong to no file.
    pub anonymous_bytes: ByteCount,
    /// Resident pages of mapped files: weights in the page cache, program code.
    pub mapped_bytes: ByteCount,
    /// Page-locked buffers for transfers to the device.
    pub pinned_bytes: ByteCount,
    /// The tightest limit of the cgroups above the process.
    pub cgroup_limit_bytes: Option<ByteCount>,
    /// Use of the cgroup with that limit.
    pub cgroup_used_bytes: Option<ByteCount>,
}

/// Cost of each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseReadings {
    /// While weights were read and placed.
    pub load: PhaseReading,
    /// During probes and first forward passes.
    pub warm_up: PhaseReading,
    /// While samples were evaluated.
    pub run: PhaseReading,
}

/// Cost of one phase, over all components.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseReading {
    /// Time spent in it.
    pub seconds: f64,
    /// Peak of what tensors occupied.
    pub allocated_peak_bytes: ByteCount,
    /// Peak of what the allocator had taken.
    pub reserved_peak_bytes: ByteCount,
    /// Peak of the device's use, less the baseline.
    pub device_peak_bytes: Option<ByteCount>,
    /// Peak of the resident set.
    pub host_peak_bytes: ByteCount,
}

impl PhaseReadings {
    /// The reading of one phase.
    pub const fn of(&self, phase: Phase) -> &PhaseReading {
        match phase {
            Phase::Load => &self.load,
            Phase::WarmUp => &self.warm_up,
            Phase::Run => &self.run,
        }
    }

    /// The reading of one phase, to be changed.
    pub const fn of_mut(&mut self, phase: Phase) -> &mut PhaseReading {
        match phase {
            Phase::Load => &mut self.load,
            Phase::WarmUp => &mut self.warm_up,
            Phase::Run => &mut self.run,
        }
    }
}

/// One prediction beside its measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForecastReading {
    /// The component.
    pub component: Component,
    /// The model's folder, last part.
    pub model: String,
    /// Its number format.
    pub precision: Precision,
    /// Rows (images or texts) of one forward pass.
    pub rows: u32,
    /// Tokens of one row.
    pub tokens: u32,
    /// Predicted peak of weights and activations.
    pub predicted_bytes: ByteCount,
    /// Measured peak of the same.
    pub measured_bytes: Option<ByteCount>,
    /// Probes that the prediction was corrected by, 0 to 3.
    pub probes: u32,
    /// Why this many rows.
    pub reason: String,
}

/// More was in use than the quota allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breach {
    /// When it was seen, milliseconds of Unix time.
    pub at_unix_ms: i64,
    /// The quota.
    pub quota_bytes: ByteCount,
    /// What was in use.
    pub used_bytes: ByteCount,
    /// Whose memory it was, in words: `other processes on the device`, `device runtime`.
    pub by: String,
}

/// One reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When, milliseconds of Unix time.
    pub at_unix_ms: i64,
    /// What the executor was doing.
    pub phase: Phase,
    /// What tensors occupied.
    pub allocated_bytes: ByteCount,
    /// What the allocator had taken.
    pub reserved_bytes: ByteCount,
    /// The device's use by everybody, less the baseline.
    pub device_bytes: Option<ByteCount>,
    /// Sum of all leases.
    pub leased_bytes: ByteCount,
    /// Resident set.
    pub resident_bytes: ByteCount,
    /// Resident pages that belong to no file.
    pub anonymous_bytes: ByteCount,
    /// Resident pages of mapped files.
    pub mapped_bytes: ByteCount,
    /// Use of the cgroup.
    pub cgroup_used_bytes: Option<ByteCount>,
}
