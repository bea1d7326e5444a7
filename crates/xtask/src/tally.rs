//! Counting tests from what the runners print at their end.

use std::iter::Sum;
use std::ops::Add;

/// Tests that passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Tally {
    /// Adds up the closing lines of cargo-nextest (`Summary … 3 passed, 1 failed`) and of the
    /// built-in harness (`test result: ok. 3 passed; 0 failed; …`), with or without colours.
    pub(crate) fn of_line(line: &str) -> Self {
        let plain = without_colours(line);
        let counts = if let Some(counts) = plain.trim_start().strip_prefix("test result: ") {
            counts.split_once(". ").map_or("", |(_, counts)| counts)
        } else if plain.trim_start().starts_with("Summary [") {
            plain.split_once(" run: ").map_or("", |(_, counts)| counts)
        } else {
            return Self::default();
        };
        counts.split([',', ';', '(', ')']).map(Self::of_count).sum()
    }

    /// Of one count such as `3 passed`; what is slow, skipped or ignored is not counted again.
    fn of_count(text: &str) -> Self {
        let Some((number, what)) = text.trim().split_once(' ') else { return Self::default() };
        let Ok(number) = number.parse() else { return Self::default() };
        match what {
            "passed" => Self { passed: number, failed: 0 },
            "failed" | "timed out" | "exec failed" => Self { passed: 0, failed: number },
            _ => Self::default(),
        }
    }
}

impl Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { passed: self.passed + other.passed, failed: self.failed + other.failed }
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), Self::add)
    }
}

/// Drops ANSI colour sequences (`ESC [ … m`).
fn without_colours(line: &str) -> String {
    let mut pieces = line.split("\u{1b}[");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |plain, piece| plain + piece.split_once('m').map_or("", |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(lines: &str) -> (u64, u64) {
        let tally: Tally = lines.lines().map(Tally::of_line).sum();
        (tally.passed, tally.failed)
    }

    #[test]
    fn the_built_in_harness_is_added_up() {
        let output = "running 2 tests\ntest a ... ok\n\
            test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
            test result: FAILED. 3 passed; 4 failed; 0 ignored; 0 measured; 9 filtered out\n";
        assert_eq!(counted(output), (5, 4));
    }

    #[test]
    fn nextest_counts_time_outs_as_failures() {
        let line = "     Summary [   8.4s] 12/14 tests run: 9 passed (1 slow, 2 leaky), 1 failed, \
                    1 timed out, 1 exec failed, 3 skipped";
        assert_eq!(counted(line), (9, 3));
    }

    #[test]
    fn colours_do_not_hide_the_counts() {
        let line = "\u{1b}[32;1m     Summary\u{1b}[0m [   0.0s] \u{1b}[1m2\u{1b}[0m tests run: \
                    \u{1b}[1m2\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, \u{1b}[1m0\u{1b}[0m skipped";
        assert_eq!(counted(line), (2, 0));
    }

    #[test]
    fn other_lines_count_nothing() {
        assert_eq!(counted("3 passed, 1 failed\ntest result\nSummary: 4 passed\n\u{1b}["), (0, 0));
    }
}
