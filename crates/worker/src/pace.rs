//! Whether an attempt gets on. Pure: time is passed in.
//!
//! An executor that repeats itself gets nowhere: only rows that are done, or found to be there,
//! move the deadline.

use std::time::Duration;

use orchestrator_proto::v1;
use tokio::time::Instant;

/// How far an attempt is, and since when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    done: u64,
    total: u64,
    since: Instant,
}

impl Pace {
    /// Nothing is done yet.
    pub(crate) const fn begin(now: Instant) -> Self {
        Self { done: 0, total: 0, since: now }
    }

    /// The executor tells how far it is.
    pub(crate) fn hear(&mut self, &v1::Progress { done, total }: &v1::Progress, now: Instant) {
        if done > self.done || total > self.total {
            *self = Self { done: self.done.max(done), total: self.total.max(total), since: now };
        }
    }

    /// When it counts as stalled if nothing more comes.
    pub(crate) fn deadline(&self, patience: Duration) -> Instant {
        self.since + patience
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn only_what_is_new_moves_the_deadline() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pace = Pace::begin(start);
        let mut hear = |seconds, done, total| {
            pace.hear(&v1::Progress { done, total }, at(seconds));
            pace.deadline(PATIENCE)
        };
        assert_eq!(hear(3, 0, 0), at(10), "a sign of life is no progress");
        assert_eq!(hear(4, 0, 8), at(14), "it knows what there is to do");
        assert_eq!(hear(5, 0, 8), at(14));
        assert_eq!(hear(6, 2, 8), at(16));
        assert_eq!(hear(7, 1, 8), at(16), "back and forth is no progress");
        assert_eq!(hear(8, 2, 8), at(16));
        assert_eq!(hear(9, 3, 8), at(19));
    }

    proptest! {
        #[test]
        fn no_chatter_lives_for_ever(told in proptest::collection::vec((0_u64..5, 0_u64..5), 0..200)) {
            let start = Instant::now();
            let mut pace = Pace::begin(start);
            for ((done, total), second) in told.into_iter().zip(1..) {
                pace.hear(&v1::Progress { done, total }, start + Duration::from_secs(second));
            }
            let mut last = pace;
            last.hear(&v1::Progress { done: 4, total: 4 }, start + Duration::from_hours(1));
            last.hear(&v1::Progress { done: 4, total: 4 }, start + Duration::from_hours(2));
            prop_assert!(last.deadline(PATIENCE) <= start + Duration::from_hours(1) + PATIENCE);
        }
    }
}
