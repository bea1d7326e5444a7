//! [`Pace`]: how long units take, and which attempts are stragglers.
//!
//! A twin is another attempt of a unit whose attempt takes much longer than its like, started on
//! another host when the run is nearly over and a slice has nothing else to do. The first result
//! counts, the other attempt is revoked.

use std::collections::{BTreeMap, VecDeque};

use orchestrator_types::Component;

use crate::{Attempt, Millis};

/// Latest units whose time is remembered, by component.
const REMEMBERED: usize = 101;
/// Units of which the time must be known before a median says anything.
const FEWEST: usize = 3;

/// When a slow attempt gets a twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stragglers {
    /// An attempt is never slow before it has run for so long, in milliseconds.
    pub least_ms: u64,
}

impl Default for Stragglers {
    /// 30 s.
    fn default() -> Self {
        Self { least_ms: 30_000 }
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    took: BTreeMap<Component, VecDeque<u64>>,
}

impl Pace {
    pub(crate) fn committed(&mut self, component: Component, took: u64) {
        let took_by = self.took.entry(component).or_default();
        if took_by.len() == REMEMBERED {
            took_by.pop_front();
        }
        took_by.push_back(took);
    }

    /// Milliseconds after which an attempt of this component is slow: one and a half times the
    /// median, at least `least_ms`. `None` while too little is known.
    pub(crate) fn slow_after(&self, component: Component, stragglers: Stragglers) -> Option<u64> {
        let mut took: Vec<u64> = self.took.get(&component)?.iter().copied().collect();
        if took.len() < FEWEST {
            return None;
        }
        let half = took.len() / 2;
        let (_, median, _) = took.select_nth_unstable(half);
        Some(stragglers.least_ms.max(*median + *median / 2))
    }
}

/// Whether an attempt has run for at least `slow_after` milliseconds.
pub(crate) fn is_slow(attempt: &Attempt, slow_after: u64, now: Millis) -> bool {
    attempt.started.after(slow_after) <= now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_is_half_as_long_again_as_the_median_and_not_before_the_least() {
        let mut pace = Pace::default();
        let stragglers = Stragglers { least_ms: 100 };
        let slow = |pace: &Pace| pace.slow_after(Component::Vision, stragglers);
        for took in [10, 1_000] {
            pace.committed(Component::Vision, took);
        }
        assert_eq!(slow(&pace), None, "two say nothing");
        pace.committed(Component::Vision, 20);
        assert_eq!(slow(&pace), Some(100));
        (0..3).for_each(|_| pace.committed(Component::Vision, 1_000));
        assert_eq!(slow(&pace), Some(1_500));
        assert_eq!(pace.slow_after(Component::Text, stragglers), None);
        (0..REMEMBERED).for_each(|_| pace.committed(Component::Vision, 1));
        assert_eq!(slow(&pace), Some(100), "old times are forgotten");
    }
}
