//! The report: a pure fold over what a run has committed, and its renderings.
//!
//! | module | gives |
//! | --- | --- |
//! | [`fold`] | [`Evidence`] → [`Report`] |
//! | [`json`] | `report.json`, schema `orchestrator.report/1` |
//! | [`text`] | the result table of the terminal |
//! | [`markdown`] | `report.md` |
//! | [`profile_text`], [`profile_json`], [`profile_svg`] | where a tower's bytes go |
//! | [`parquet`] | `predictions.parquet`, `memory.parquet` and the embeddings, row by row |
//!
//! Invariant: a report never looks better than the run was. [`Report::complete`] is false as soon
//! as one sample or unit is quarantined, failed or cancelled, or a task's samples do not add up;
//! what was not measured is `null`, not zero; every number is finite; and equal evidence gives an
//! equal report, in whatever order its parts arrived.
//!
//! On confidence: each figure is a point estimate over the samples that were evaluated, with no
//! interval beside it. A share *p* over *n* samples has a standard error of √(*p* (1 − *p*) / *n*):
//! on 1,593 images and 71 %, ± 1.1 points. Differences between two runs over the same samples are
//! paired and much finer than that; intervals and a paired test need `predictions.parquet` and are
//! not built yet.
//!
//! Absent on purpose: files, clocks, and opinions about terminals.

mod evidence;
mod fold;
pub mod json;
pub mod markdown;
mod memory;
pub mod parquet;
mod profile;
mod report;
mod rows;
pub mod text;

pub use evidence::{
    AccountEvidence, Batch, DatasetEvidence, Evidence, MemoryEvidence, ModelEvidence, NodeEvidence,
    QuarantinedSample, TaskEvidence, TrialEvidence, UnfinishedUnit, UnitOutcome,
};
pub use fold::{FoldError, fold};
pub use memory::{newest, samples};
pub use profile::{ReadProfileError, profile_json, profile_svg, profile_text, read_profile};
pub use report::{
    DatasetProvenance, Forecast, HostMemory, Images, Memory, ModelProvenance, Node, PhaseMemory,
    Phases, Provenance, Report, Samples, Task, Trial,
};

#[cfg(test)]
mod tests;
