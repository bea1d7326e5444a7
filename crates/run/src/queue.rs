//! [`Queue`]: units that may be granted, in the plan's order, and those that wait out a backoff.

use std::collections::BTreeSet;

use orchestrator_plan::Plan;
use orchestrator_types::{Component, UnitId};

use crate::Millis;

const COMPONENTS: [Component; 3] = [Component::Text, Component::Vision, Component::Score];

/// See the module's documentation. A unit is in it at most once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    /// By component, in the order in which they should run.
    ready: [BTreeSet<(u32, UnitId)>; 3],
    delayed: BTreeSet<(Millis, UnitId)>,
}

impl Queue {
    pub(crate) fn offer(&mut self, plan: &Plan, unit: UnitId) {
        let component = plan.units.component(unit);
        self.ready[component as usize].insert((plan.units.turn(unit), unit));
    }

    /// Offers `unit` from `at` on.
    pub(crate) fn delay(&mut self, unit: UnitId, at: Millis) {
        self.delayed.insert((at, unit));
    }

    /// Offers every unit whose backoff is over.
    pub(crate) fn wake(&mut self, plan: &Plan, now: Millis) {
        while let Some(&(at, unit)) = self.delayed.first().filter(|(at, _)| *at <= now) {
            self.delayed.remove(&(at, unit));
            self.offer(plan, unit);
        }
    }

    /// What a slice with these components may run, best first: texts before images before scores.
    pub(crate) fn ready(&self, components: &[Component]) -> impl Iterator<Item = UnitId> {
        let allowed = COMPONENTS.into_iter().filter(|component| components.contains(component));
        allowed.flat_map(|component| self.ready[component as usize].iter().map(|(_, unit)| *unit))
    }

    pub(crate) fn take(&mut self, plan: &Plan, unit: UnitId) {
        let component = plan.units.component(unit);
        self.ready[component as usize].remove(&(plan.units.turn(unit), unit));
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
