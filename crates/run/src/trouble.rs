//! [`Trouble`]: what went wrong with a unit, and what follows. Few units have any.

use std::collections::BTreeSet;

use orchestrator_plan::{Unit, Work};
use orchestrator_types::{FailureClass, NodeName, Shard};

use crate::{
    Attempt, COUNTED_ATTEMPTS, INFRASTRUCTURE_ATTEMPTS, Terms,
    hunt::{Hunt, Next},
};

/// Hosts on which a unit may fail for a reason of its own before that is believed.
const WITNESSES: usize = 2;
/// Deaths beside other units before a unit is computed alone.
const DEATHS_IN_COMPANY: u32 = 2;

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trouble {
    counted: u32,
    infrastructure: u32,
    deaths: u32,
    /// Hosts on which it failed for a reason of its own.
    witnesses: BTreeSet<NodeName>,
    hunt: Option<Hunt>,
}

impl Trouble {
    /// Failed attempts so far.
    pub(crate) const fn failures(&self) -> u32 {
        self.counted + self.infrastructure
    }

    /// Whether a slice of `node` should leave the unit to others, if there are others. When there
    /// are witnesses enough, anybody may have it: perhaps nobody else is left.
    pub(crate) fn avoids(&self, node: &NodeName) -> bool {
        let wanted = self.hunt.is_none() && self.witnesses.len() < WITNESSES;
        wanted && self.witnesses.contains(node)
    }

    /// How the next attempt is computed.
    pub(crate) fn terms(&self) -> Terms {
        self.hunt.as_ref().map_or_else(Terms::default, Hunt::terms)
    }

    /// Takes in that a probe's executor lived.
    pub(crate) fn survived(&mut self) -> Next {
        self.hunt.as_mut().map_or(Next::Again, Hunt::survived)
    }

    /// Takes in a failed attempt of a unit whose `rows` may be set aside, if any.
    pub(crate) fn failed(
        &mut self,
        rows: Option<Shard>,
        attempt: &Attempt,
        class: FailureClass,
    ) -> Next {
        match class {
            FailureClass::Infrastructure => {
                self.infrastructure += 1;
                give_up_if(self.infrastructure >= INFRASTRUCTURE_ATTEMPTS)
            }
            FailureClass::Internal => {
                self.counted += 1;
                give_up_if(self.counted >= COUNTED_ATTEMPTS)
            }
            FailureClass::Invalid => {
                self.counted += 1;
                self.witnesses.insert(attempt.node.clone());
                // Without another host there is nobody else to ask.
                give_up_if(self.witnesses.len() >= WITNESSES || !attempt.elsewhere)
            }
            FailureClass::Crash | FailureClass::Resource => self.died(rows, attempt),
        }
    }

    fn died(&mut self, rows: Option<Shard>, attempt: &Attempt) -> Next {
        self.counted += 1;
        if let Some(hunt) = self.hunt.as_mut().filter(|_| attempt.terms.alone) {
            return hunt.died();
        }
        self.deaths += 1;
        self.witnesses.insert(attempt.node.clone());
        if self.deaths >= DEATHS_IN_COMPANY && self.hunt.is_none() {
            self.hunt = Some(Hunt::new(rows));
        }
        Next::Again
    }
}

const fn give_up_if(given_up: bool) -> Next {
    if given_up { Next::GiveUp } else { Next::Again }
}

/// The samples of a unit, if bad ones may be set aside.
pub(crate) const fn bisectable(unit: &Unit) -> Option<Shard> {
    match &unit.work {
        Work::EncodeImages(work) if work.quarantine_bad_samples => Some(work.shard),
        Work::EncodeImages(_) | Work::EncodeTexts(_) | Work::Rank(_) => None,
    }
}
