//! Tiles of scores, computed and handed to the ranker.

use orchestrator_engine::Scorer;
use orchestrator_tasks::{Ranker, ScoreTile};
use orchestrator_types::Shard;

use super::{CANDIDATES, QUERIES, sides::Side};
use crate::error::ExecuteError;

/// Which of the two passes over the scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Find each query's best relevant score.
    Observe,
    /// Count what beats it.
    Count,
}

/// Buffers of one compute thread.
pub(super) struct Scratch {
    scorer: Scorer,
    queries: Vec<f32>,
    candidates: Vec<f32>,
    scores: Vec<f32>,
}

impl Scratch {
    pub(super) fn new(width: usize) -> Self {
        let (queries, candidates) = (QUERIES as usize, CANDIDATES as usize);
        Self {
            scorer: Scorer::new(width),
            queries: vec![0.0; queries * width],
            candidates: vec![0.0; candidates * width],
            scores: vec![0.0; queries * candidates],
        }
    }

    pub(super) fn take_queries(&mut self, side: &Side<'_>, queries: Shard) {
        side.gather(queries, &mut self.queries);
    }

    /// Scores the queries taken before against `candidates` of `block`.
    pub(super) fn score(
        &mut self,
        pass: Pass,
        ranker: &mut Ranker,
        queries: Shard,
        block: &Side<'_>,
        candidates: Shard,
    ) -> Result<(), ExecuteError> {
        if pass == Pass::Observe && !ranker.has_relevant(queries, candidates) {
            return Ok(());
        }
        block.gather(candidates, &mut self.candidates);
        self.scorer.scores(&self.queries, &self.candidates, &mut self.scores)?;
        let tile = ScoreTile::strided(queries, candidates, CANDIDATES as usize, &self.scores)?;
        match pass {
            Pass::Observe => ranker.observe(&tile)?,
            Pass::Count => ranker.count(&tile)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`super::super`] promises: with it, equal texts tie exactly.
    #[test]
    fn a_score_is_the_same_wherever_its_rows_stand_in_the_tile() {
        for width in [64_usize, 256, 512, 768] {
            let mut state = 1_u32;
            let mut row = || -> Vec<f32> {
                let next = |_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 8) as f32 / (1 << 24) as f32 - 0.5
                };
                (0..width).map(next).collect()
            };
            let mut scratch = Scratch::new(width);
            let (query, candidate) = (row(), row());
            scratch.queries = query.repeat(QUERIES as usize);
            scratch.candidates = candidate.repeat(CANDIDATES as usize);
            let Scratch { scorer, queries, candidates, scores } = &mut scratch;
            scorer.scores(queries, candidates, scores).unwrap();
            let expected = scores[0].to_bits();
            assert!(scores.iter().all(|score| score.to_bits() == expected), "width {width}");
            // Nor does it depend on its neighbours.
            for (index, value) in queries.iter_mut().enumerate().skip(width) {
                *value += index as f32;
            }
            candidates[..width * 17].fill(0.0);
            scorer.scores(queries, candidates, scores).unwrap();
            assert_eq!(scores[17].to_bits(), expected, "width {width}");
        }
    }
}
