//! The coordinator: takes evaluations, hands out units, keeps results.
//!
//! gRPC handlers (`grpc`) are thin; one thread decides (`driver`); one SQLite file is the truth
//! (`store`); large bytes lie beside it by content (`blobs`). Embedded in `submit` and as a
//! service it is the same code.
//!
//! Invariants:
//! - nothing is acknowledged before it is durable;
//! - only a committed result is ever read, and each unit has at most one;
//! - a report is a function of what is stored: it is never written twice differently.
//!
//! Absent on purpose: YAML, datasets, placement maths, transitions of units (`spec`, `data`,
//! `plan`, `run`).

mod access;
mod audit;
mod blobs;
mod calls;
mod clock;
mod config;
mod driver;
mod durable;
mod event;
#[cfg(test)]
mod fixtures;
mod grpc;
mod http;
mod inspector;
mod life;
mod lost;
mod metrics;
mod results;
mod service;
mod store;
mod submit;
mod sweep;
#[cfg(test)]
mod tests;
mod transfer;
mod view;
mod watch;

pub use blobs::{BlobError, BlobPlace, ParsePlaceError};
pub use calls::CallLimits;
pub use clock::{Clock, SystemClock};
pub use config::Config;
pub use event::{Progress, Recorded, RunEvent};
pub use life::EndError;
pub use orchestrator_proto::{Blocking, Defect};
pub use results::run_folder;
pub use service::{Coordinator, StartError};
pub use store::{
    Documents, Reader, RunSummary, SliceRow, StoreError, UnitRow, UnitStage, Violation, check_store,
};
pub use view::{
    AttemptView, ClusterView, Count, FailedUnit, RunLine, RunStatus, SetAside, SliceView,
    WorkerView,
};

use orchestrator_proto::Refusal;

/// A refusal with the whole chain of causes: the other end of a wire has no other way to see it.
fn refusal(code: orchestrator_proto::RefusalCode, error: &dyn std::error::Error) -> Refusal {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message = format!("{message}: {error}");
        cause = error.source();
    }
    Refusal::new(code, message)
}

/// A name that nobody has used: a lower-case ULID, which sorts by time.
fn fresh_name<T: std::str::FromStr<Err: std::fmt::Debug>>() -> T {
    let name = ulid::Ulid::generate().to_string().to_lowercase();
    name.parse().expect("letters and digits make a name")
}
