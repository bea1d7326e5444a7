//! Which unit a free slice gets.
//!
//! First what nobody has, in the plan's order; a unit that failed on this host is left to others
//! while there are any. When nothing is left and the run is nearly over, a twin of a straggler.

use orchestrator_types::{FencingToken, NodeName, UnitId};

use crate::{
    Asker, Attempt, Command, Millis, Run, pace::is_slow, trouble::Trouble, unit::UnitState,
};

/// Units that read the same samples.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Live attempts.
    pub(crate) live: u32,
    /// The host that took one of them last.
    pub(crate) home: NodeName,
}

/// Ready units looked at for one that suits the slice best: a bound on the work of one grant.
const LOOKED_AT: usize = 64;

impl Run {
    pub(crate) fn grant(&mut self, asker: Asker, token: FencingToken, now: Millis) -> Vec<Command> {
        self.queue.wake(&self.plan, now);
        let Some(unit) = self.choose(&asker) else {
            return self.twin(asker, token, now);
        };
        self.queue.take(&self.plan, unit);
        self.units[unit.0 as usize] = UnitState::Leased;
        vec![Command::Grant(self.begin(unit, asker, token, now))]
    }

    fn choose(&self, asker: &Asker) -> Option<UnitId> {
        let avoided = |unit: UnitId| {
            let trouble = self.troubled.get(&unit);
            trouble.is_some_and(|trouble| trouble.avoids(&asker.node))
                && asker.elsewhere.contains(&self.component(unit))
        };
        let mut ready = self.queue.ready(&asker.components).filter(|unit| !avoided(*unit));
        let first = ready.next()?;
        if !self.shares_samples || self.plan.units.group(first).is_none() {
            return Some(first);
        }
        let component = self.component(first);
        let alike = ready.take(LOOKED_AT).take_while(|unit| self.component(*unit) == component);
        std::iter::once(first).chain(alike).min_by_key(|unit| self.reluctance(*unit, &asker.node))
    }

    /// Units of one group read the same samples: best is one whose samples this host has decoded
    /// before and nobody decodes now, worst is one whose samples somebody is just decoding. The
    /// first of equals is taken.
    fn reluctance(&self, unit: UnitId, node: &NodeName) -> u8 {
        match self.plan.units.group(unit).and_then(|group| self.groups.get(&group)) {
            Some(Group { live: 0, home }) if home == node => 0,
            None | Some(Group { live: 0, .. }) => 1,
            Some(_) => 2,
        }
    }

    fn begin(&mut self, unit: UnitId, asker: Asker, token: FencingToken, now: Millis) -> Attempt {
        let trouble = self.troubled.get(&unit);
        let elsewhere = asker.elsewhere.contains(&self.component(unit));
        let attempt = Attempt {
            unit,
            number: trouble.map_or(0, Trouble::failures) + self.live_of(unit) + 1,
            token,
            session: asker.session,
            node: asker.node,
            slice: asker.slice,
            started: now,
            terms: trouble.map(Trouble::terms).unwrap_or_default(),
            elsewhere,
        };
        self.insert_live(attempt.clone());
        attempt
    }

    /// A second attempt of the slowest unit, if the time has come for it.
    fn twin(&mut self, asker: Asker, token: FencingToken, now: Millis) -> Vec<Command> {
        // Attempts are in the order of their grants: the first is the oldest.
        let oldest = self.live.values().next();
        let least = self.stragglers.least_ms;
        if !oldest.is_some_and(|attempt| is_slow(attempt, least, now)) || !self.nearly_over() {
            return Vec::new();
        }
        let most = (self.live.len() / 10).max(1);
        if self.twins() >= most {
            return Vec::new();
        }
        let slow = self.live.values().take_while(|attempt| is_slow(attempt, least, now));
        let found = slow.into_iter().find(|attempt| self.is_straggler(attempt, &asker, now));
        let Some(unit) = found.map(|attempt| attempt.unit) else { return Vec::new() };
        vec![Command::Grant(self.begin(unit, asker, token, now))]
    }

    fn is_straggler(&self, attempt: &Attempt, asker: &Asker, now: Millis) -> bool {
        let component = self.component(attempt.unit);
        let slow_after = self.pace.slow_after(component, self.stragglers);
        asker.components.contains(&component)
            && attempt.slice != asker.slice
            && attempt.node != asker.node
            && self.live_of(attempt.unit) == 1
            && !self.troubled.contains_key(&attempt.unit)
            && slow_after.is_some_and(|slow_after| is_slow(attempt, slow_after, now))
    }

    /// Whether three quarters of the units have ended.
    fn nearly_over(&self) -> bool {
        self.open * 4 <= self.units.len()
    }
}
