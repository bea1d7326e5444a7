//! One unit's life.

use orchestrator_types::{FailureClass, FencingToken, SessionId, SliceId, UnitId};

/// One try of a unit, live until it is committed, failed or revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The unit.
    pub unit: UnitId,
    /// Counted from 1 over the unit's life in this coordinator.
    pub number: u32,
    /// Its identity.
    pub token: FencingToken,
    /// Who runs it.
    pub session: SessionId,
    /// Where it runs.
    pub slice: SliceId,
}

/// What a run must know of a result that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The attempt that gave it.
    pub token: FencingToken,
    /// Whether it leaves out samples that could not be read.
    pub set_aside: bool,
}

/// How a unit ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitOutcome {
    /// Its result counts.
    Committed(FencingToken),
    /// No attempt gave a result, or none could be made.
    Failed {
        /// Class of the last failure.
        class: FailureClass,
        /// For people.
        message: String,
    },
    /// The run was cancelled first.
    Cancelled,
}

/// State of a unit inside [`crate::Run`].
#[derive(Clone, Debug)]
pub(crate) enum UnitState {
    /// Not running: waiting for inputs, for a slice or for its backoff.
    Open(Failures),
    /// One live attempt.
    Leased(Failures),
    /// Absorbing.
    Ended(UnitOutcome),
}

/// Failed attempts so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Failures {
    /// Failures that say something about the unit.
    pub counted: u32,
    /// Attempts lost with their worker.
    pub infrastructure: u32,
}

impl Failures {
    pub(crate) const fn total(self) -> u32 {
        self.counted + self.infrastructure
    }

    /// Adds one failure; `true` if no further attempt may follow.
    pub(crate) fn add(&mut self, class: FailureClass) -> bool {
        match class {
            FailureClass::Invalid => {
                self.counted += 1;
                true
            }
            FailureClass::Infrastructure => {
                self.infrastructure += 1;
                self.infrastructure >= crate::INFRASTRUCTURE_ATTEMPTS
            }
            FailureClass::Resource | FailureClass::Crash | FailureClass::Internal => {
                self.counted += 1;
                self.counted >= crate::COUNTED_ATTEMPTS
            }
        }
    }
}
