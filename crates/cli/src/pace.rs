//! How fast something goes, and how long it still takes.
//!
//! Invariant: pure. What was done before the first look, in an earlier life of the run, is no part
//! of the rate; what is done never becomes less.

use std::{collections::VecDeque, time::Duration};

/// The rate is a mean over so much of the recent past.
const WINDOW: Duration = Duration::from_secs(20);
/// Looks closer together than this are one: it bounds the memory of a window.
const STEP: Duration = Duration::from_millis(200);
/// A rate over less time than this would jump about.
const SHORTEST: Duration = Duration::from_secs(1);

/// Rows done over time.
#[derive(Debug)]
pub(crate) struct Pace {
    /// When, and how many were done; the newest last, never empty.
    looks: VecDeque<(Duration, u64)>,
    done: u64,
}

impl Pace {
    /// `done` rows are there at the first look, at the time `now` of any clock.
    pub(crate) fn new(now: Duration, done: u64) -> Self {
        Self { looks: VecDeque::from([(now, done)]), done }
    }

    /// `done` rows are there at `now`. Less than before (an attempt was lost and starts again)
    /// counts as standing still.
    pub(crate) fn look(&mut self, now: Duration, done: u64) {
        self.done = self.done.max(done);
        let newest = self.looks.back().map_or(Duration::ZERO, |(at, _)| *at);
        if now >= newest + STEP {
            self.looks.push_back((now, self.done));
        }
        // One look outside the window stays: the window begins there.
        while self.looks.get(1).is_some_and(|(at, _)| *at + WINDOW < now) {
            self.looks.pop_front();
        }
    }

    /// Rows done.
    pub(crate) const fn done(&self) -> u64 {
        self.done
    }

    /// Rows a second at `now`; nothing until that says something.
    pub(crate) fn rate(&self, now: Duration) -> Option<f64> {
        let (start, done) = *self.looks.front()?;
        let time = now.checked_sub(start).filter(|time| *time >= SHORTEST)?;
        let rows = self.done - done;
        (rows > 0).then(|| rows as f64 / time.as_secs_f64())
    }

    /// Time until `total` rows are done; nothing where the rate says nothing.
    pub(crate) fn left(&self, now: Duration, total: u64) -> Option<Duration> {
        let rows = total.saturating_sub(self.done);
        Duration::try_from_secs_f64(rows as f64 / self.rate(now)?).ok()
    }
}

/// `176/s, 11 s left`; empty while that is unknown, and no remaining time once all is done.
pub(crate) fn describe(pace: &Pace, now: Duration, total: u64) -> String {
    let Some(rate) = pace.rate(now) else { return String::new() };
    let rate = if rate < 10.0 { format!("{rate:.1}/s") } else { format!("{rate:.0}/s") };
    match pace.left(now, total) {
        Some(left) if pace.done() < total => format!("{rate}, {} left", rounded(left)),
        _ => rate,
    }
}

/// As exact as a guess deserves.
fn rounded(time: Duration) -> String {
    match time.as_secs() {
        // Never "0 s": it is not done yet.
        seconds @ 0..60 => format!("{} s", seconds.max(1)),
        seconds @ 60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn work_of_an_earlier_life_does_not_count() {
        let mut pace = Pace::new(seconds(5), 3000);
        assert_eq!(describe(&pace, seconds(5), 4000), "");
        pace.look(seconds(15), 3100);
        assert_eq!(describe(&pace, seconds(15), 4000), "10/s, 1 min 30 s left");
    }

    #[test]
    fn only_the_recent_past_counts() {
        let mut pace = Pace::new(seconds(0), 0);
        for second in 1..=100 {
            pace.look(seconds(second), second);
        }
        for second in 101..=140 {
            pace.look(seconds(second), 100 + (second - 100) * 50);
        }
        let rate = pace.rate(seconds(140)).unwrap();
        assert!((rate - 50.0).abs() < 0.01, "{rate}");
        assert!(pace.looks.len() < 25, "a window, not a history");
    }

    #[test]
    fn a_lost_attempt_is_a_pause() {
        let mut pace = Pace::new(seconds(0), 0);
        pace.look(seconds(10), 100);
        pace.look(seconds(11), 60);
        assert_eq!(pace.done(), 100);
        assert_eq!(describe(&pace, seconds(20), 200), "5.0/s, 20 s left");
    }

    #[test]
    fn many_looks_in_no_time_are_one() {
        let mut pace = Pace::new(seconds(0), 0);
        for row in 0..10_000 {
            pace.look(seconds(2) + Duration::from_micros(row), row);
        }
        assert!(pace.looks.len() < 5);
        assert_eq!(pace.done(), 9_999);
    }

    #[test]
    fn what_stands_still_or_is_done_has_no_end_to_wait_for() {
        let mut pace = Pace::new(seconds(0), 7);
        pace.look(seconds(60), 7);
        assert_eq!(describe(&pace, seconds(60), 9), "");
        pace.look(seconds(61), 9);
        assert_eq!(pace.left(seconds(61), 9), Some(Duration::ZERO));
        assert!(!describe(&pace, seconds(61), 9).contains("left"));
    }
}
