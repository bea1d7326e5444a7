//! One unit's life.

use orchestrator_types::{
    Component, FailureClass, FencingToken, NodeName, SessionId, Shard, SliceId, UnitId,
};

use crate::Millis;

/// Who asks for a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The worker's life that asks.
    pub session: SessionId,
    /// Its host.
    pub node: NodeName,
    /// The slice that would run the unit.
    pub slice: SliceId,
    /// What the plan lets this slice hold.
    pub components: Vec<Component>,
    /// What slices of other hosts hold: a unit that failed here may be tried there.
    pub elsewhere: Vec<Component>,
}

/// How an attempt differs from the plain computation of its unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Computed by an executor that has computed nothing else.
    pub alone: bool,
    /// Positions that are neither read nor computed.
    pub set_aside: Vec<Shard>,
    /// What is told of them.
    pub reason: String,
    /// Only whether the executor survives matters: the result is not kept.
    pub probe: bool,
}

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
    /// On which host.
    pub node: NodeName,
    /// Where it runs.
    pub slice: SliceId,
    /// When it was granted, or taken over by this coordinator.
    pub started: Millis,
    /// How it is computed.
    pub terms: Terms,
    /// Whether slices of other hosts could have run it too, when it was granted.
    pub elsewhere: bool,
}

impl Attempt {
    /// Only with a bug planted: an attempt of which nothing is known any more.
    pub(crate) fn planted(unit: UnitId, token: FencingToken) -> Self {
        let name = "planted.0";
        Self {
            unit,
            number: 1,
            token,
            session: name.parse().expect("a legal name"),
            node: name.parse().expect("a legal name"),
            slice: name.parse().expect("a legal name"),
            started: Millis::default(),
            terms: Terms::default(),
            elsewhere: false,
        }
    }
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

/// State of a unit inside [`crate::Run`]: sixteen bytes, for there may be millions.
#[derive(Clone, Debug)]
pub(crate) enum UnitState {
    /// Not running: waiting for inputs, for a slice or for its backoff.
    Open,
    /// At least one live attempt.
    Leased,
    /// Absorbing.
    Committed(FencingToken),
    /// Absorbing. Boxed: rare, and large.
    Failed(Box<(FailureClass, String)>),
    /// Absorbing.
    Cancelled,
}

impl UnitState {
    pub(crate) fn outcome(&self) -> Option<UnitOutcome> {
        match self {
            Self::Open | Self::Leased => None,
            Self::Committed(token) => Some(UnitOutcome::Committed(*token)),
            Self::Failed(failure) => {
                let (class, message) = failure.as_ref().clone();
                Some(UnitOutcome::Failed { class, message })
            }
            Self::Cancelled => Some(UnitOutcome::Cancelled),
        }
    }

    pub(crate) const fn is_ended(&self) -> bool {
        matches!(self, Self::Committed(_) | Self::Failed(_) | Self::Cancelled)
    }
}

impl From<UnitOutcome> for UnitState {
    fn from(outcome: UnitOutcome) -> Self {
        match outcome {
            UnitOutcome::Committed(token) => Self::Committed(token),
            UnitOutcome::Failed { class, message } => Self::Failed(Box::new((class, message))),
            UnitOutcome::Cancelled => Self::Cancelled,
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_million_units_stay_small() {
        assert!(size_of::<super::UnitState>() <= 16);
    }
}
