//! The protocol's state machine: facts in, orders out.
//!
//! [`Run::step`] is a pure function of its state, one [`Event`] and the monotonic time. The
//! coordinator's loop feeds it and performs the [`Command`]s, in order, inside one transaction.
//!
//! Invariants, checked by property tests:
//! - a unit is committed at most once, by an attempt that was live at that moment;
//! - committed, failed and cancelled are absorbing;
//! - a unit is granted only when everything that it needs is committed;
//! - a run that has ended has no live attempt and no open unit, and grants nothing;
//! - every live attempt has a deadline: its session's lease;
//! - a unit has one live attempt, or two when the first is slow and the run nearly over: the first
//!   result counts and revokes the other.
//!
//! Absent on purpose: clocks, stores, networks, and the results themselves.

mod assignment;
mod grant;
mod hunt;
mod needs;
mod pace;
mod queue;
mod retry;
mod run;
mod samples;
#[cfg(test)]
mod tests;
mod trouble;
mod unit;
mod validate;

pub use assignment::{
    AssignedRank, AssignedWork, Assignment, Blob, ExecutorReading, ImageCounts, QuarantinedSample,
    Timing, UnitResult,
};
pub use pace::Stragglers;
pub use retry::{COUNTED_ATTEMPTS, INFRASTRUCTURE_ATTEMPTS, Millis, backoff};
pub use run::Run;
pub use samples::{OtherSamples, SampleDigests};
pub use unit::{Asker, Attempt, Committed, Terms, UnitOutcome};
pub use validate::validate;

use orchestrator_types::{FailureClass, FencingToken, SessionId, UnitId};
use serde::{Deserialize, Serialize};

/// A fact that reaches the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A slice has nothing to do.
    SliceFree {
        /// Which one, and what it may run.
        asker: Asker,
        /// The token that a grant would carry: never used before.
        token: FencingToken,
    },
    /// A worker says that an attempt has its result staged.
    Finished {
        /// The attempt.
        token: FencingToken,
        /// Its unit, as the worker believes.
        unit: UnitId,
        /// Whether the result leaves out samples that could not be read.
        set_aside: bool,
    },
    /// An attempt ended without a result.
    Failed {
        /// The attempt.
        token: FencingToken,
        /// Decides what follows.
        class: FailureClass,
        /// For people.
        message: String,
    },
    /// A worker's session ended: silence, a broken connection or a restart, all the same.
    SessionLost {
        /// The session.
        session: SessionId,
    },
    /// A worker leaves on purpose and hands back what it has.
    Released {
        /// Its session.
        session: SessionId,
    },
    /// Nobody is left to compute anything, and nobody has come for long.
    Deserted {
        /// For people.
        message: String,
    },
    /// A user wants the run to end.
    Cancel,
}

/// An order to the loop around the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send this unit to the slice that asked.
    Grant(Attempt),
    /// Store the result: it counts.
    Commit(Attempt),
    /// Tell the worker that this very attempt is committed already.
    AlreadyCommitted(UnitId),
    /// Tell the worker that its attempt no longer counts.
    Fence {
        /// The unit that the worker named.
        unit: UnitId,
        /// The late attempt.
        token: FencingToken,
    },
    /// Tell the worker to stop this attempt: it no longer counts.
    Revoke(Attempt),
    /// The attempt's worker handed it back: its unit is as before.
    Release(Attempt),
    /// The attempt was a probe and is over: nothing of its result is kept.
    Note(Attempt),
    /// An attempt failed; the unit is retried unless `last`.
    Failure {
        /// The attempt that failed.
        attempt: Attempt,
        /// Its class.
        class: FailureClass,
        /// For people.
        message: String,
        /// No further attempt follows.
        last: bool,
    },
    /// A unit ended without ever being tried again because of something else.
    Abandon {
        /// The unit.
        unit: UnitId,
        /// Why.
        outcome: UnitOutcome,
    },
    /// Nothing is left to do.
    End(RunState),
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Units are open.
    Running,
    /// Every unit is committed, and no sample was set aside.
    Complete,
    /// Every unit has ended, and some have no result or set samples aside.
    Incomplete,
    /// A user ended it.
    Cancelled,
}

impl RunState {
    /// The name in reports and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Incomplete => "incomplete",
            Self::Cancelled => "cancelled",
        }
    }
}
