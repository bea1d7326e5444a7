//! The ranker against a naive sort of the full matrix, and its refusals.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const fn shard(start: u32, end: u32) -> Shard {
    Shard { start, end }
}

/// A ranking with everything that may vary about it.
#[derive(Clone, Debug)]
struct Case {
    first_query: u32,
    queries: u32,
    candidates: u32,
    /// Row-major; few distinct values, so that ties are everywhere.
    scores: Vec<f32>,
    relevant: Vec<BTreeSet<u32>>,
    excluded_queries: BTreeSet<u32>,
    excluded_candidates: BTreeSet<u32>,
    depth: u32,
}

impl Case {
    fn shard(&self) -> Shard {
        shard(self.first_query, self.first_query + self.queries)
    }

    fn ranker(&self) -> Ranker {
        let sets = self.relevant.iter().map(|set| set.iter().copied());
        let relevance = Relevance::new(self.shard(), self.candidates, sets).unwrap();
        let excluded = Excluded::new(
            self.excluded_queries.iter().map(|query| query + self.first_query),
            self.excluded_candidates.iter().copied(),
        );
        Ranker::new(relevance, excluded, self.depth)
    }

    fn row(&self, row: u32) -> &[f32] {
        let width = self.candidates as usize;
        &self.scores[row as usize * width..][..width]
    }

    /// What the definition says: sort all candidates, look for the first relevant one.
    fn naive(&self) -> Vec<Ranked> {
        let ranked = (0..self.queries).filter(|row| !self.excluded_queries.contains(row));
        ranked.filter_map(|row| self.naive_row(row)).collect()
    }

    fn naive_row(&self, row: u32) -> Option<Ranked> {
        let mut order: Vec<(u32, f32)> = (0..self.candidates)
            .zip(self.row(row).iter().copied())
            .filter(|(candidate, _)| !self.excluded_candidates.contains(candidate))
            .collect();
        order.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        let at = order.iter().position(|(index, _)| self.relevant[row as usize].contains(index))?;
        Some(Ranked {
            query: self.first_query + row,
            rank: u32::try_from(at).unwrap() + 1,
            best: order[at].0,
            best_score: order[at].1,
            top: order.iter().copied().take(self.depth as usize).collect(),
        })
    }

    /// The scores of a tile, copied out with one number of padding per row.
    fn block(&self, queries: Shard, candidates: Shard) -> Vec<f32> {
        (queries.start..queries.end)
            .flat_map(|query| {
                let row = self.row(query - self.first_query);
                row[candidates.range()].iter().copied().chain([f32::NAN])
            })
            .collect()
    }

    /// Ranks by tiles cut at `row_cuts` and `column_cuts`, visited in an order made from `seed`.
    fn tiled(&self, row_cuts: &[u32], column_cuts: &[u32], seed: u64) -> Vec<Ranked> {
        let rows = cut(self.shard(), row_cuts.iter().map(|at| at + self.first_query));
        let columns = cut(shard(0, self.candidates), column_cuts.iter().copied());
        let mut tiles: Vec<_> = rows
            .iter()
            .flat_map(|&queries| columns.iter().map(move |&candidates| (queries, candidates)))
            .collect();
        let mut ranker = self.ranker();
        shuffle(&mut tiles, seed);
        for &(queries, candidates) in &tiles {
            if ranker.has_relevant(queries, candidates) {
                self.with_tile(queries, candidates, |tile| ranker.observe(tile)).unwrap();
            }
        }
        shuffle(&mut tiles, seed.wrapping_add(1));
        for &(queries, candidates) in &tiles {
            self.with_tile(queries, candidates, |tile| ranker.count(tile)).unwrap();
        }
        ranker.finish().unwrap()
    }

    fn with_tile<T>(
        &self,
        queries: Shard,
        candidates: Shard,
        give: impl FnOnce(&ScoreTile<'_>) -> T,
    ) -> T {
        let block = self.block(queries, candidates);
        let stride = candidates.len() as usize + 1;
        give(&ScoreTile::strided(queries, candidates, stride, &block).unwrap())
    }

    fn whole<T>(&self, give: impl FnOnce(&ScoreTile<'_>) -> T) -> T {
        self.with_tile(self.shard(), shard(0, self.candidates), give)
    }
}

fn cut(whole: Shard, at: impl Iterator<Item = u32>) -> Vec<Shard> {
    let inner = at.filter(|&at| at > whole.start && at < whole.end);
    let cuts: BTreeSet<u32> = inner.chain([whole.start, whole.end]).collect();
    let cuts: Vec<u32> = cuts.into_iter().collect();
    cuts.windows(2).map(|pair| shard(pair[0], pair[1])).collect()
}

/// A permutation that depends on the seed alone.
fn shuffle<T>(items: &mut [T], mut seed: u64) {
    for end in (1..items.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(end, usize::try_from(seed >> 33).unwrap() % (end + 1));
    }
}

fn case() -> impl Strategy<Value = Case> {
    (0..1000_u32, 1..6_u32, 1..700_u32, 1..20_u8, 0..12_u32).prop_flat_map(
        |(first_query, queries, candidates, levels, depth)| {
            let score = (0..levels).prop_map(|level| f32::from(level) / 8.0 - 1.0);
            let relevant = prop::collection::btree_set(0..candidates, 1..6);
            (
                prop::collection::vec(score, (queries * candidates) as usize),
                prop::collection::vec(relevant, queries as usize),
                prop::collection::btree_set(0..queries, 0..2),
                prop::collection::btree_set(0..candidates, 0..8),
            )
                .prop_map(
                    move |(scores, relevant, excluded_queries, excluded_candidates)| Case {
                        first_query,
                        queries,
                        candidates,
                        scores,
                        relevant,
                        excluded_queries,
                        excluded_candidates,
                        depth,
                    },
                )
        },
    )
}

proptest! {
    #[test]
    fn any_cut_and_order_ranks_as_a_full_sort_does(
        case in case(),
        row_cuts in prop::collection::vec(0..6_u32, 0..4),
        column_cuts in prop::collection::vec(0..700_u32, 0..5),
        seed: u64,
    ) {
        prop_assert_eq!(case.tiled(&row_cuts, &column_cuts, seed), case.naive());
    }

    #[test]
    fn scores_of_excluded_candidates_may_be_anything(
        mut case in case(),
        odd in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
        column_cuts in prop::collection::vec(0..700_u32, 0..5),
    ) {
        let expected = case.naive();
        for row in 0..case.queries {
            for &candidate in &case.excluded_candidates {
                case.scores[(row * case.candidates + candidate) as usize] = odd;
            }
        }
        prop_assert_eq!(case.tiled(&[], &column_cuts, 0), expected);
    }

    #[test]
    fn one_broken_score_is_named_and_never_ranked(
        mut case in case(),
        at: prop::sample::Index,
        odd in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
    ) {
        case.excluded_queries.clear();
        case.excluded_candidates.clear();
        let at = at.index(case.scores.len());
        case.scores[at] = odd;
        let mut ranker = case.ranker();
        let result = case.whole(|tile| ranker.observe(tile).and_then(|()| ranker.count(tile)));
        let Err(RankError::NotFinite { query, candidate, score }) = result else {
            return Err(TestCaseError::fail(format!("{result:?}")));
        };
        prop_assert_eq!(score.to_bits(), odd.to_bits());
        let row = query - case.first_query;
        prop_assert_eq!((row * case.candidates + candidate) as usize, at);
    }
}

fn small() -> Case {
    Case {
        first_query: 10,
        queries: 2,
        candidates: 3,
        scores: vec![0.5, 0.5, 0.1, 0.2, 0.3, 0.4],
        relevant: vec![BTreeSet::from([1]), BTreeSet::from([0, 2])],
        excluded_queries: BTreeSet::new(),
        excluded_candidates: BTreeSet::new(),
        depth: 2,
    }
}

#[test]
fn ties_go_to_the_lower_index() {
    let ranked = small().tiled(&[], &[], 0);
    assert_eq!((ranked[0].rank, ranked[0].best), (2, 1));
    assert_eq!(ranked[0].top, [(0, 0.5), (1, 0.5)]);
    assert_eq!((ranked[1].rank, ranked[1].best), (1, 2));
}

#[test]
fn a_query_without_relevant_candidates_left_is_not_ranked() {
    let mut case = small();
    case.excluded_candidates.insert(1);
    let ranked = case.tiled(&[], &[], 0);
    assert_eq!(ranked.len(), 1);
    assert_eq!(ranked[0].query, 11);
}

#[test]
fn incomplete_and_repeated_tiles_are_refused() {
    let case = small();
    let mut ranker = case.ranker();
    let early = case.whole(|tile| ranker.count(tile)).unwrap_err();
    assert_eq!(
        early.to_string(),
        "query 10 was counted before 1 of its relevant candidates were observed"
    );
    case.whole(|tile| ranker.observe(tile)).unwrap();
    let again = case.whole(|tile| ranker.observe(tile)).unwrap_err();
    assert_eq!(again.to_string(), "query 10 was given the same candidates twice");
    case.with_tile(case.shard(), shard(0, 2), |tile| ranker.count(tile)).unwrap();
    let again = case.with_tile(case.shard(), shard(0, 2), |tile| ranker.count(tile)).unwrap_err();
    assert_eq!(again.to_string(), "query 10 was given the same candidates twice");
    let early = ranker.finish().unwrap_err();
    assert_eq!(early.to_string(), "query 10 was counted against 2 of 3 candidates");
}

#[test]
fn tiles_over_the_edge_are_refused() {
    let case = small();
    let mut ranker = case.ranker();
    let tile = ScoreTile::new(shard(11, 13), shard(0, 3), &[0.0; 6]).unwrap();
    assert_eq!(
        ranker.count(&tile).unwrap_err().to_string(),
        "a tile of queries 11..13 × candidates 0..3 is outside queries 10..12 × candidates 0..3"
    );
}

#[test]
fn broken_scores_are_named() {
    let mut case = small();
    case.scores[4] = f32::NAN;
    let mut ranker = case.ranker();
    case.whole(|tile| ranker.observe(tile)).unwrap();
    assert_eq!(
        case.whole(|tile| ranker.count(tile)).unwrap_err().to_string(),
        "the score of query 11 and candidate 1 is NaN, not a finite number; an embedding is broken"
    );
}
