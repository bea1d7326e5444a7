//! Ranks of a shard of queries, from score tiles in any cut and order.
//!
//! Invariant: the result is a function of the scores, the relevance and the exclusions alone. It
//! is complete or an error: a candidate that was left out or seen too often, and a score that is
//! not a finite number, are never ranked around.

use orchestrator_types::Shard;
use serde::{Deserialize, Serialize};

use crate::{
    relevance::{Relevance, between},
    scan::{Scan, scan},
    tile::ScoreTile,
};

#[cfg(test)]
mod tests;

/// Scores looked at between two looks at the top list's threshold.
const BLOCK: usize = 128;

/// Queries and candidates that take no part, because their sample is quarantined.
///
/// An excluded candidate beats nobody, is in no top list, and its scores may be anything. A query
/// that is excluded, or whose relevant candidates are all excluded, is not ranked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excluded {
    queries: Vec<u32>,
    candidates: Vec<u32>,
}

/// Where one query's best relevant candidate stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranked {
    /// Position of the query among all queries.
    pub query: u32,
    /// 1 = no candidate is better.
    pub rank: u32,
    /// The best relevant candidate (of equally good ones, the one with the lowest index).
    pub best: u32,
    /// Its score.
    pub best_score: f32,
    /// The best candidates, relevant or not, best first: index and score.
    pub top: Vec<(u32, f32)>,
}

/// Tiles that give no ranking.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum RankError {
    /// A score is infinite or not a number.
    #[error(
        "the score of query {query} and candidate {candidate} is {score}, not a finite number; an embedding is broken"
    )]
    NotFinite {
        /// The query.
        query: u32,
        /// The candidate.
        candidate: u32,
        /// The score.
        score: f32,
    },
    /// A tile reaches over the edge of the ranking.
    #[error(
        "a tile of queries {tile_queries} × candidates {tile_candidates} is outside queries {queries} × candidates 0..{candidates}"
    )]
    Outside {
        /// Rows of the tile.
        tile_queries: Shard,
        /// Columns of the tile.
        tile_candidates: Shard,
        /// Rows of the ranking.
        queries: Shard,
        /// Number of candidates of the ranking.
        candidates: u32,
    },
    /// A tile was observed or counted twice.
    #[error("query {query} was given the same candidates twice")]
    Repeated {
        /// The query.
        query: u32,
    },
    /// Counting began before every relevant score was observed.
    #[error("query {query} was counted before {missing} of its relevant candidates were observed")]
    NotObserved {
        /// The query.
        query: u32,
        /// Relevant candidates without a score.
        missing: u32,
    },
    /// The ranking was finished before every candidate was counted.
    #[error("query {query} was counted against {counted} of {candidates} candidates")]
    NotCounted {
        /// The query.
        query: u32,
        /// Candidates counted.
        counted: u32,
        /// Candidates there are.
        candidates: u32,
    },
}

impl Excluded {
    /// These queries and these candidates, by position, in any order.
    pub fn new(
        queries: impl IntoIterator<Item = u32>,
        candidates: impl IntoIterator<Item = u32>,
    ) -> Self {
        Self { queries: ascending(queries), candidates: ascending(candidates) }
    }

    fn query(&self, query: u32) -> bool {
        self.queries.binary_search(&query).is_ok()
    }

    fn candidate(&self, candidate: u32) -> bool {
        self.candidates.binary_search(&candidate).is_ok()
    }
}

fn ascending(positions: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut positions: Vec<u32> = positions.into_iter().collect();
    positions.sort_unstable();
    positions.dedup();
    positions
}

/// Ranks the queries of one shard in two passes over the scores.
///
/// Pass 1 ([`observe`](Self::observe)) needs only the tiles in which
/// [`has_relevant`](Self::has_relevant) says that something is relevant; pass 2
/// ([`count`](Self::count)) needs every tile once. A tile may go through both in turn, once all
/// relevant candidates of its queries have been observed. Memory: `depth` + a few words per query.
#[derive(Debug)]
pub struct Ranker {
    relevance: Relevance,
    excluded: Excluded,
    rows: Vec<Row>,
}

/// What is known of one query.
#[derive(Clone, Debug)]
struct Row {
    /// Relevant candidates still to be observed.
    missing: u32,
    /// The best relevant candidate so far: index, score.
    best: Option<(u32, f32)>,
    /// Candidates counted, excluded ones too.
    counted: u32,
    /// Candidates that beat the best relevant one.
    beating: u32,
    top: Top,
}

/// The best candidates so far, best first.
#[derive(Clone, Debug)]
struct Top {
    depth: usize,
    /// Nothing below this score is admitted.
    threshold: f32,
    entries: Vec<(u32, f32)>,
}

impl Ranker {
    /// A ranking of the queries of `relevance` that also keeps each query's `depth` best
    /// candidates.
    pub fn new(relevance: Relevance, excluded: Excluded, depth: u32) -> Self {
        let queries = relevance.queries();
        let depth = depth.min(relevance.candidates()) as usize;
        let rows = (queries.start..queries.end)
            .map(|query| Row::new(&relevance, &excluded, query, depth))
            .collect();
        Self { relevance, excluded, rows }
    }

    /// Whether any of `candidates` is relevant to any of `queries`: whether pass 1 needs that tile.
    pub fn has_relevant(&self, queries: Shard, candidates: Shard) -> bool {
        let known = self.relevance.queries();
        (queries.start.max(known.start)..queries.end.min(known.end))
            .any(|query| !self.relevance.within(query, candidates).is_empty())
    }

    /// Pass 1: finds each query's best relevant score.
    pub fn observe(&mut self, tile: &ScoreTile<'_>) -> Result<(), RankError> {
        self.check_inside(tile)?;
        for (query, scores) in tile.rows() {
            let row = &mut self.rows[(query - self.relevance.queries().start) as usize];
            for &candidate in self.relevance.within(query, tile.candidates()) {
                if self.excluded.query(query) || self.excluded.candidate(candidate) {
                    continue;
                }
                let score = scores[(candidate - tile.candidates().start) as usize];
                row.observe(query, candidate, score)?;
            }
        }
        Ok(())
    }

    /// Pass 2: counts the candidates that beat the best relevant one, and keeps the best.
    pub fn count(&mut self, tile: &ScoreTile<'_>) -> Result<(), RankError> {
        self.check_inside(tile)?;
        let candidates = tile.candidates();
        for (query, scores) in tile.rows() {
            let row = &mut self.rows[(query - self.relevance.queries().start) as usize];
            if row.missing > 0 {
                return Err(RankError::NotObserved { query, missing: row.missing });
            }
            if candidates.len() > self.relevance.candidates() - row.counted {
                return Err(RankError::Repeated { query });
            }
            row.counted += candidates.len();
            row.count(&self.excluded, query, candidates, scores)?;
        }
        Ok(())
    }

    /// The ranks, in the order of the queries; those that are not ranked are left out.
    pub fn finish(self) -> Result<Vec<Ranked>, RankError> {
        let candidates = self.relevance.candidates();
        let mut ranked = Vec::with_capacity(self.rows.len());
        for (row, query) in self.rows.into_iter().zip(self.relevance.queries().start..) {
            let (missing, counted) = (row.missing, row.counted);
            if missing > 0 {
                return Err(RankError::NotObserved { query, missing });
            }
            if counted < candidates && row.best.is_some() {
                return Err(RankError::NotCounted { query, counted, candidates });
            }
            let Some((best, best_score)) = row.best else { continue };
            let (rank, top) = (row.beating + 1, row.top.entries);
            ranked.push(Ranked { query, rank, best, best_score, top });
        }
        Ok(ranked)
    }

    fn check_inside(&self, tile: &ScoreTile<'_>) -> Result<(), RankError> {
        let (queries, candidates) = (self.relevance.queries(), self.relevance.candidates());
        let (tile_queries, tile_candidates) = (tile.queries(), tile.candidates());
        let inside = tile_queries.start >= queries.start
            && tile_queries.end <= queries.end
            && tile_candidates.end <= candidates;
        if inside {
            Ok(())
        } else {
            Err(RankError::Outside { tile_queries, tile_candidates, queries, candidates })
        }
    }
}

impl Row {
    fn new(relevance: &Relevance, excluded: &Excluded, query: u32, depth: usize) -> Self {
        let relevant = relevance.of(query).iter().filter(|&&index| !excluded.candidate(index));
        let missing = if excluded.query(query) { 0 } else { relevant.map(|_| 1).sum() };
        Self { missing, best: None, counted: 0, beating: 0, top: Top::new(depth) }
    }

    fn observe(&mut self, query: u32, candidate: u32, score: f32) -> Result<(), RankError> {
        if !score.is_finite() {
            return Err(RankError::NotFinite { query, candidate, score });
        }
        self.missing = self.missing.checked_sub(1).ok_or(RankError::Repeated { query })?;
        if self.best.is_none_or(|best| beats((candidate, score), best)) {
            self.best = Some((candidate, score));
        }
        Ok(())
    }

    fn count(
        &mut self,
        excluded: &Excluded,
        query: u32,
        candidates: Shard,
        scores: &[f32],
    ) -> Result<(), RankError> {
        let Some((best, pivot)) = self.best else { return Ok(()) };
        // Left of the best relevant candidate a tie beats it; from itself on, only more does.
        let split = best.clamp(candidates.start, candidates.end);
        let (left, right) = scores.split_at((split - candidates.start) as usize);
        for (first, block) in blocks(candidates.start, left) {
            self.take(excluded, query, first, block, scan::<true>(block, pivot))?;
        }
        for (first, block) in blocks(split, right) {
            self.take(excluded, query, first, block, scan::<false>(block, pivot))?;
        }
        // Excluded candidates are rare: counted with the others, then taken back.
        for &candidate in between(&excluded.candidates, candidates) {
            let score = scores[(candidate - candidates.start) as usize];
            self.beating -= u32::from(beats((candidate, score), (best, pivot)));
        }
        Ok(())
    }

    /// Adds what a scan found, and looks at single scores only where there is something to find.
    fn take(
        &mut self,
        excluded: &Excluded,
        query: u32,
        first: u32,
        block: &[f32],
        found: Scan,
    ) -> Result<(), RankError> {
        self.beating += found.beating;
        if !found.finite {
            let broken = block
                .iter()
                .zip(first..)
                .find(|&(score, candidate)| !score.is_finite() && !excluded.candidate(candidate));
            if let Some((&score, candidate)) = broken {
                return Err(RankError::NotFinite { query, candidate, score });
            }
        }
        if found.finite && found.highest < self.top.threshold {
            return Ok(());
        }
        for (&score, candidate) in block.iter().zip(first..) {
            let entry = (candidate, score);
            // The first test decides nearly always, and is false for what is not a number.
            if score >= self.top.threshold
                && self.top.admits(entry)
                && !excluded.candidate(candidate)
            {
                self.top.insert(entry);
            }
        }
        Ok(())
    }
}

impl Top {
    fn new(depth: usize) -> Self {
        let threshold = if depth == 0 { f32::INFINITY } else { f32::NEG_INFINITY };
        Self { depth, threshold, entries: Vec::with_capacity(depth) }
    }

    fn admits(&self, entry: (u32, f32)) -> bool {
        match self.entries.last() {
            Some(&worst) if self.entries.len() == self.depth => beats(entry, worst),
            _ => self.depth > 0,
        }
    }

    /// Takes in an admitted entry.
    fn insert(&mut self, entry: (u32, f32)) {
        let at = self.entries.partition_point(|&other| beats(other, entry));
        self.entries.truncate(self.depth - 1);
        self.entries.insert(at, entry);
        if self.entries.len() == self.depth {
            self.threshold = self.entries[self.depth - 1].1;
        }
    }
}

/// Whether candidate `a` stands before candidate `b`: a higher score, or an equal one and a lower
/// index.
#[expect(clippy::float_cmp, reason = "a tie is exact equality: equal texts have equal embeddings")]
fn beats(a: (u32, f32), b: (u32, f32)) -> bool {
    a.1 > b.1 || (a.1 == b.1 && a.0 < b.0)
}

/// A run of scores cut into blocks, each with the candidate of its first score.
fn blocks(first: u32, scores: &[f32]) -> impl Iterator<Item = (u32, &[f32])> {
    scores.chunks(BLOCK).zip((first..).step_by(BLOCK)).map(|(block, first)| (first, block))
}
