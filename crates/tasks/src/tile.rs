//! A block of the score matrix, borrowed from whoever computed it.

use orchestrator_types::Shard;

/// Scores of `queries` (rows) against `candidates` (columns), row-major; higher is better.
///
/// The rows may be longer than the tile is wide: a kernel that always computes blocks of one shape
/// passes its padded output with the block's width as stride, and the padding is never read.
#[derive(Clone, Copy, Debug)]
pub struct ScoreTile<'a> {
    queries: Shard,
    candidates: Shard,
    stride: usize,
    scores: &'a [f32],
}

/// A buffer that does not hold the tile it is said to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TileShapeError {
    /// A range ends before it starts.
    #[error("a tile's range {0} ends before it starts")]
    Reversed(Shard),
    /// The rows overlap.
    #[error("a stride of {stride} is less than the {columns} columns of the tile")]
    Stride {
        /// Distance between the starts of two rows.
        stride: usize,
        /// Number of candidates.
        columns: usize,
    },
    /// The buffer's length does not match.
    #[error(
        "scores of queries {queries} × candidates {candidates} need {expected} numbers, got {actual}"
    )]
    Length {
        /// Rows.
        queries: Shard,
        /// Columns.
        candidates: Shard,
        /// Numbers needed (at least, where a stride was given).
        expected: usize,
        /// Numbers given.
        actual: usize,
    },
}

impl<'a> ScoreTile<'a> {
    /// A tile without padding: `scores` holds exactly `queries.len() × candidates.len()` numbers.
    pub fn new(
        queries: Shard,
        candidates: Shard,
        scores: &'a [f32],
    ) -> Result<Self, TileShapeError> {
        let tile = Self::strided(queries, candidates, columns_of(candidates)?, scores)?;
        let expected = tile.needed();
        if scores.len() == expected {
            Ok(tile)
        } else {
            Err(TileShapeError::Length { queries, candidates, expected, actual: scores.len() })
        }
    }

    /// A tile whose rows start `stride` numbers apart. `scores` may go on after the last row.
    pub fn strided(
        queries: Shard,
        candidates: Shard,
        stride: usize,
        scores: &'a [f32],
    ) -> Result<Self, TileShapeError> {
        columns_of(queries)?;
        let columns = columns_of(candidates)?;
        if stride < columns {
            return Err(TileShapeError::Stride { stride, columns });
        }
        let tile = Self { queries, candidates, stride, scores };
        let expected = tile.needed();
        if scores.len() < expected {
            return Err(TileShapeError::Length {
                queries,
                candidates,
                expected,
                actual: scores.len(),
            });
        }
        Ok(tile)
    }

    /// The rows, by position among all queries.
    pub const fn queries(&self) -> Shard {
        self.queries
    }

    /// The columns, by position among all candidates.
    pub const fn candidates(&self) -> Shard {
        self.candidates
    }

    /// Each query of the tile with its scores.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (u32, &'a [f32])> {
        let (scores, stride, columns) = (self.scores, self.stride, self.candidates.range().len());
        (self.queries.start..self.queries.end).enumerate().map(move |(row, query)| {
            let start = row * stride;
            (query, &scores[start..start + columns])
        })
    }

    /// Numbers from the first score to the last; saturates, so that an absurd shape is refused.
    fn needed(&self) -> usize {
        let (rows, columns) = (self.queries.range().len(), self.candidates.range().len());
        match rows.checked_sub(1) {
            Some(before_last) => before_last.saturating_mul(self.stride).saturating_add(columns),
            None => 0,
        }
    }
}

fn columns_of(range: Shard) -> Result<usize, TileShapeError> {
    if range.start <= range.end {
        Ok(range.range().len())
    } else {
        Err(TileShapeError::Reversed(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUERIES: Shard = Shard { start: 4, end: 6 };
    const CANDIDATES: Shard = Shard { start: 10, end: 13 };

    #[test]
    fn padding_of_a_strided_tile_is_not_read() {
        let scores = [1.0, 2.0, 3.0, f32::NAN, 4.0, 5.0, 6.0];
        let tile = ScoreTile::strided(QUERIES, CANDIDATES, 4, &scores).unwrap();
        let rows: Vec<_> = tile.rows().collect();
        assert_eq!(rows, [(4, &[1.0, 2.0, 3.0][..]), (5, &[4.0, 5.0, 6.0][..])]);
    }

    #[test]
    fn buffers_of_another_shape_are_refused() {
        let message =
            |result: Result<ScoreTile<'_>, TileShapeError>| result.unwrap_err().to_string();
        assert_eq!(
            message(ScoreTile::new(QUERIES, CANDIDATES, &[0.0; 7])),
            "scores of queries 4..6 × candidates 10..13 need 6 numbers, got 7"
        );
        assert_eq!(
            message(ScoreTile::strided(QUERIES, CANDIDATES, 4, &[0.0; 6])),
            "scores of queries 4..6 × candidates 10..13 need 7 numbers, got 6"
        );
        assert_eq!(
            message(ScoreTile::strided(QUERIES, CANDIDATES, 2, &[0.0; 6])),
            "a stride of 2 is less than the 3 columns of the tile"
        );
        assert_eq!(
            message(ScoreTile::new(Shard { start: 2, end: 1 }, CANDIDATES, &[])),
            "a tile's range 2..1 ends before it starts"
        );
    }
}
