//! What happened in a run, in order: the lines of `events.jsonl` and the messages of `Watch`.
//!
//! Invariant: a recorded event was committed to the store in the same transaction as the change
//! that it tells about. Progress is the one exception: it is never stored and has no sequence.

use orchestrator_proto::{v1, wire_run_state};
use orchestrator_run::RunState;
use orchestrator_types::{
    Component, DatasetName, Digest, FailureClass, FencingToken, NodeName, RunId, SampleId, SliceId,
    UnitId, wording::one_line,
};
use serde::{Deserialize, Serialize};

/// A fact of a run's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RunEvent {
    /// The run started, ended or was opened again.
    StateChanged {
        /// Where it stands now.
        state: RunState,
    },
    /// An attempt started.
    UnitLeased {
        /// The unit.
        unit: UnitId,
        /// Counted from 1.
        attempt: u32,
        /// Where it runs.
        slice: SliceId,
        /// Its identity.
        token: FencingToken,
    },
    /// A result counts from now on.
    UnitCommitted {
        /// The unit.
        unit: UnitId,
        /// Who computed it.
        slice: SliceId,
        /// Rows in its blob.
        rows: u64,
        /// The whole attempt, wall clock.
        total_ms: u64,
        /// Nothing was computed: a cache had it.
        cached: bool,
    },
    /// An attempt ended without a result, or a unit was given up because of another.
    UnitFailed {
        /// The unit.
        unit: UnitId,
        /// Counted from 1; 0 for a unit given up because of another.
        attempt: u32,
        /// Where it ran; none for a unit given up because of another.
        slice: Option<SliceId>,
        /// Its class.
        class: FailureClass,
        /// For people.
        message: String,
        /// No further attempt follows.
        last: bool,
    },
    /// A sample was set aside; told once a run, however many trials meet it.
    SampleQuarantined {
        /// Its dataset.
        dataset: DatasetName,
        /// Its identity.
        sample: SampleId,
        /// What is wrong with it.
        reason: String,
    },
    /// A worker with live attempts in this run is gone.
    WorkerLost {
        /// Its host.
        node: NodeName,
        /// How that was found.
        reason: String,
    },
    /// A late result has other bytes than the one that counts.
    Divergence {
        /// The unit.
        unit: UnitId,
        /// The late attempt.
        token: FencingToken,
        /// What counts.
        committed: Digest,
        /// What came late.
        late: Digest,
    },
    /// A result arrived too late to count.
    LateResult {
        /// The unit.
        unit: UnitId,
        /// The attempt.
        token: FencingToken,
    },
}

/// An event at its place in a run's history; its JSON is one line of `events.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// Position in the run's history, from 1.
    pub sequence: u64,
    /// Wall clock of the coordinator, milliseconds since 1970.
    pub at_unix_ms: i64,
    /// What happened.
    pub event: RunEvent,
}

/// Rows of one component that are done, over the whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The component.
    pub component: Component,
    /// Rows of committed units and of what live attempts report.
    pub done: u64,
    /// Rows of all units.
    pub total: u64,
}

/// What watchers of a run are told as it happens.
#[derive(Clone, Debug)]
pub(crate) enum Live {
    /// Stored already.
    Recorded(RunId, Recorded),
    /// Not stored.
    Progress(RunId, i64, Progress),
}

impl Live {
    pub(crate) const fn run(&self) -> &RunId {
        match self {
            Self::Recorded(run, _) | Self::Progress(run, ..) => run,
        }
    }
}

impl RunEvent {
    /// Writes it to the log, with its names as fields.
    pub(crate) fn log(&self, run: &RunId) {
        match self {
            Self::StateChanged { state } => tracing::info!(%run, state = state.name(), "run"),
            Self::UnitLeased { unit, attempt, slice, token } => {
                tracing::debug!(%run, %unit, attempt, %token, %slice, "leased");
            }
            Self::UnitCommitted { unit, slice, rows, total_ms, cached } => {
                tracing::debug!(%run, %unit, %slice, rows, total_ms, cached, "committed");
            }
            Self::UnitFailed { unit, attempt, slice, class, message, last } => {
                let slice = slice.as_ref().map(tracing::field::display);
                let message = one_line(message);
                tracing::warn!(%run, %unit, attempt, slice, %class, last, message, "failed");
            }
            Self::SampleQuarantined { dataset, sample, reason } => {
                let (sample, reason) = (one_line(&sample.0), one_line(reason));
                tracing::warn!(%run, %dataset, sample, reason, "quarantined");
            }
            Self::WorkerLost { node, reason } => {
                tracing::warn!(%run, %node, reason, "worker lost");
            }
            Self::Divergence { unit, token, committed, late } => {
                tracing::error!(%run, %unit, %token, %committed, %late, "a late result differs");
            }
            Self::LateResult { unit, token } => {
                tracing::info!(%run, %unit, %token, "fenced: too late");
            }
        }
    }

    /// Whether it says that a run is over.
    pub const fn is_end(&self) -> bool {
        matches!(self, Self::StateChanged { state } if !matches!(state, RunState::Running))
    }
}

/// The wire's form of a recorded event.
pub(crate) fn recorded_to_wire(Recorded { sequence, at_unix_ms, event }: Recorded) -> v1::RunEvent {
    v1::RunEvent { sequence, at_unix_ms, kind: Some(kind_to_wire(event)) }
}

/// The wire's form of progress.
pub(crate) fn progress_to_wire(at_unix_ms: i64, progress: Progress) -> v1::RunEvent {
    let Progress { component, done, total } = progress;
    let component = v1::Component::from(component).into();
    let kind = v1::run_event::Kind::Progress(v1::RunProgress { component, done, total });
    v1::RunEvent { sequence: 0, at_unix_ms, kind: Some(kind) }
}

fn kind_to_wire(event: RunEvent) -> v1::run_event::Kind {
    use v1::run_event::Kind;
    match event {
        RunEvent::StateChanged { state } => {
            Kind::StateChanged(v1::StateChanged { state: wire_run_state(state).into() })
        }
        RunEvent::UnitLeased { unit, attempt, slice, token } => Kind::UnitLeased(v1::UnitLeased {
            unit: unit.0,
            attempt,
            slice: slice.into(),
            token: token.0,
        }),
        RunEvent::UnitCommitted { unit, slice, rows, total_ms, cached } => {
            let slice = slice.into();
            Kind::UnitCommitted(v1::UnitCommitted { unit: unit.0, slice, rows, total_ms, cached })
        }
        RunEvent::UnitFailed { unit, attempt, slice, class, message, last } => {
            Kind::UnitFailed(v1::UnitFailed {
                unit: unit.0,
                attempt,
                slice: slice.map(String::from).unwrap_or_default(),
                class: v1::FailureClass::from(class).into(),
                message,
                r#final: last,
            })
        }
        RunEvent::SampleQuarantined { dataset, sample, reason } => {
            let dataset = dataset.into();
            Kind::SampleQuarantined(v1::SampleQuarantined { dataset, sample: sample.0, reason })
        }
        RunEvent::WorkerLost { node, reason } => {
            Kind::WorkerLost(v1::WorkerLost { node: node.into(), reason })
        }
        RunEvent::Divergence { unit, token, committed, late } => Kind::Divergence(v1::Divergence {
            unit: unit.0,
            token: token.0,
            committed: committed.as_bytes().to_vec(),
            late: late.as_bytes().to_vec(),
        }),
        RunEvent::LateResult { unit, token } => {
            Kind::LateResult(v1::LateResult { unit: unit.0, token: token.0 })
        }
    }
}
