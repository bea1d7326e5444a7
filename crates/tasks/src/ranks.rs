//! How often each rank was reached: all that recall and median rank need.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ranker::Ranked;

/// A sparse histogram of ranks: rank (from 1) → number of queries (from 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "BTreeMap<u32, u64>", try_from = "BTreeMap<u32, u64>")]
pub struct RankCounts(BTreeMap<u32, u64>);

/// Numbers that are no histogram of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankCountsError {
    /// Ranks start at 1.
    #[error("there is no rank 0")]
    RankZero,
    /// Ranks that nobody reached are left out.
    #[error("rank {rank} is listed with a count of 0")]
    CountZero {
        /// The rank.
        rank: u32,
    },
    /// The number of queries does not fit 64 bits.
    #[error("more ranks than 64 bits can count")]
    TooMany,
}

impl RankCounts {
    /// Number of queries that were ranked.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Number of queries whose rank is at most `k`.
    pub fn within(&self, k: u32) -> u64 {
        self.0.range(..=k).map(|(_, count)| count).sum()
    }

    /// Share of queries whose rank is at most `k`; `None` without queries.
    pub fn recall(&self, k: u32) -> Option<f64> {
        let total = self.total();
        (total > 0).then(|| self.within(k) as f64 / total as f64)
    }

    /// The median rank: the middle one, or the mean of the two middle ones (NumPy's `median`);
    /// `None` without queries.
    pub fn median(&self) -> Option<f64> {
        let total = self.total();
        let last = total.checked_sub(1)?;
        let (lower, upper) = (self.nth(last / 2)?, self.nth(total / 2)?);
        Some(f64::midpoint(f64::from(lower), f64::from(upper)))
    }

    /// The rank at position `n`, from 0, of all ranks in ascending order.
    fn nth(&self, n: u64) -> Option<u32> {
        let mut passed = 0;
        self.0.iter().find_map(|(&rank, &count)| {
            passed += count;
            (passed > n).then_some(rank)
        })
    }

    /// Both histograms together.
    pub fn merge(mut self, other: Self) -> Result<Self, RankCountsError> {
        self.total().checked_add(other.total()).ok_or(RankCountsError::TooMany)?;
        for (rank, count) in other.0 {
            *self.0.entry(rank).or_default() += count;
        }
        Ok(self)
    }
}

impl<'a> FromIterator<&'a Ranked> for RankCounts {
    fn from_iter<I: IntoIterator<Item = &'a Ranked>>(ranked: I) -> Self {
        let mut counts = BTreeMap::new();
        for query in ranked {
            *counts.entry(query.rank).or_default() += 1;
        }
        Self(counts)
    }
}

impl TryFrom<BTreeMap<u32, u64>> for RankCounts {
    type Error = RankCountsError;

    fn try_from(counts: BTreeMap<u32, u64>) -> Result<Self, Self::Error> {
        let mut total = 0_u64;
        for (&rank, &count) in &counts {
            if rank == 0 {
                return Err(RankCountsError::RankZero);
            }
            if count == 0 {
                return Err(RankCountsError::CountZero { rank });
            }
            total = total.checked_add(count).ok_or(RankCountsError::TooMany)?;
        }
        Ok(Self(counts))
    }
}

impl From<RankCounts> for BTreeMap<u32, u64> {
    fn from(counts: RankCounts) -> Self {
        counts.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(u32, u64)]) -> RankCounts {
        of.iter().copied().collect::<BTreeMap<_, _>>().try_into().unwrap()
    }

    #[test]
    fn median_is_the_mean_of_the_two_middle_ranks() {
        assert_eq!(counts(&[]).median(), None);
        assert_eq!(counts(&[(7, 1)]).median(), Some(7.0));
        assert_eq!(counts(&[(1, 1), (4, 1)]).median(), Some(2.5));
        assert_eq!(counts(&[(1, 2), (4, 1)]).median(), Some(1.0));
        assert_eq!(counts(&[(1, 2), (2, 1), (9, 3)]).median(), Some(5.5));
    }

    #[test]
    fn recall_counts_ranks_up_to_k() {
        let counts = counts(&[(1, 2), (5, 1), (6, 1)]);
        assert_eq!(counts.recall(1), Some(0.5));
        assert_eq!(counts.recall(5), Some(0.75));
        assert_eq!(counts.recall(10), Some(1.0));
        assert_eq!(RankCounts::default().recall(1), None);
    }

    #[test]
    fn numbers_that_are_no_histogram_are_refused() {
        let refuse = |of: &[(u32, u64)]| {
            RankCounts::try_from(of.iter().copied().collect::<BTreeMap<_, _>>()).unwrap_err()
        };
        assert_eq!(refuse(&[(0, 1)]), RankCountsError::RankZero);
        assert_eq!(refuse(&[(3, 0)]), RankCountsError::CountZero { rank: 3 });
        assert_eq!(refuse(&[(1, u64::MAX), (2, 1)]), RankCountsError::TooMany);
    }
}
