//! Contiguous ranges of samples.

use std::{fmt, ops::Range};

use serde::{Deserialize, Serialize};

/// The samples `start..end` of a dataset (or of a set of texts), by position. Fixed by the plan,
/// never by who runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shard {
    /// First position.
    pub start: u32,
    /// One past the last position.
    pub end: u32,
}

impl Shard {
    /// Number of positions.
    pub const fn len(self) -> u32 {
        self.end - self.start
    }

    /// Whether there is no position at all.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The positions as a range of indices.
    pub const fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// Cuts `0..total` into shards of `length` positions; the last one may be shorter.
///
/// # Panics
/// If `length` is zero.
pub fn shards(total: u32, length: u32) -> impl Iterator<Item = Shard> {
    assert!(length > 0, "a shard holds at least one position");
    (0..total.div_ceil(length)).map(move |index| {
        let start = index * length;
        Shard { start, end: start.saturating_add(length).min(total) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_every_position_once() {
        for (total, length) in [(0, 5), (1, 5), (5, 5), (6, 5), (1593, 256)] {
            let covered: Vec<u32> =
                shards(total, length).flat_map(|shard| shard.start..shard.end).collect();
            assert_eq!(covered, (0..total).collect::<Vec<_>>());
        }
    }
}
