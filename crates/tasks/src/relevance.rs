//! Which candidates are right for which query.

use orchestrator_types::Shard;

/// The relevant candidates of each query of a shard, as compressed sparse rows: the candidates of
/// query `queries.start + i` are `indices[offsets[i]..offsets[i + 1]]`, ascending, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relevance {
    queries: Shard,
    candidates: u32,
    offsets: Vec<u32>,
    indices: Vec<u32>,
}

/// Sets of candidates that cannot be ranked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelevanceError {
    /// Not one set per query.
    #[error("queries {queries} need one set of relevant candidates each, got {sets}")]
    Sets {
        /// The shard of queries.
        queries: Shard,
        /// Sets given.
        sets: usize,
    },
    /// A query that no candidate is right for.
    #[error("query {query} has no relevant candidate")]
    Empty {
        /// The query.
        query: u32,
    },
    /// A candidate that does not exist.
    #[error("query {query} names candidate {candidate}, but there are {candidates}")]
    OutOfRange {
        /// The query.
        query: u32,
        /// The candidate named.
        candidate: u32,
        /// Number of candidates.
        candidates: u32,
    },
    /// Candidates of one query that are not strictly ascending.
    #[error("query {query} lists candidate {candidate} twice or out of order")]
    Unsorted {
        /// The query.
        query: u32,
        /// The candidate listed too late.
        candidate: u32,
    },
    /// More captions than 32-bit positions can name.
    #[error("more than {} candidates or queries", u32::MAX)]
    TooMany,
}

impl Relevance {
    /// One ascending, non-empty set of candidates per query.
    pub fn new<S>(
        queries: Shard,
        candidates: u32,
        sets: impl IntoIterator<Item = S>,
    ) -> Result<Self, RelevanceError>
    where
        S: IntoIterator<Item = u32>,
    {
        let mut relevance = Self { queries, candidates, offsets: vec![0], indices: Vec::new() };
        for (query, set) in (queries.start..).zip(sets) {
            relevance.push(query, set)?;
        }
        let sets = relevance.offsets.len() - 1;
        if sets == queries.range().len() {
            Ok(relevance)
        } else {
            Err(RelevanceError::Sets { queries, sets })
        }
    }

    /// Zero-shot: the one right class of each image of the shard.
    pub fn labels(queries: Shard, classes: u32, labels: &[u32]) -> Result<Self, RelevanceError> {
        Self::new(queries, classes, labels.iter().map(|&label| [label]))
    }

    /// Image → text: queries are the images of `images`; candidates are the captions of all images
    /// (`caption_counts`, one number per image of the dataset), sample by sample.
    pub fn captions_of_images(
        images: Shard,
        caption_counts: &[u32],
    ) -> Result<Self, RelevanceError> {
        let first = first_captions(caption_counts)?;
        let total = first[caption_counts.len()];
        Self::new(
            images,
            total,
            first.windows(2).map(|pair| pair[0]..pair[1]).enumerate().filter_map(
                |(image, captions)| images.range().contains(&image).then_some(captions),
            ),
        )
    }

    /// Text → image: queries are the captions `captions`, counted sample by sample; candidates are
    /// all images, one per number in `caption_counts`.
    pub fn images_of_captions(
        captions: Shard,
        caption_counts: &[u32],
    ) -> Result<Self, RelevanceError> {
        let images = u32::try_from(caption_counts.len()).map_err(|_| RelevanceError::TooMany)?;
        let owners = (0..images)
            .zip(caption_counts)
            .flat_map(|(image, &count)| std::iter::repeat_n([image], count as usize));
        let wanted = owners.skip(captions.range().start).take(captions.range().len());
        Self::new(captions, images, wanted)
    }

    /// The queries that this covers.
    pub const fn queries(&self) -> Shard {
        self.queries
    }

    /// Number of candidates, relevant or not.
    pub const fn candidates(&self) -> u32 {
        self.candidates
    }

    /// The relevant candidates of a query of the shard, ascending.
    ///
    /// # Panics
    /// If `query` lies outside [`Relevance::queries`].
    pub fn of(&self, query: u32) -> &[u32] {
        let row = (query - self.queries.start) as usize;
        &self.indices[self.offsets[row] as usize..self.offsets[row + 1] as usize]
    }

    /// The relevant candidates of a query within a range of candidates.
    pub(crate) fn within(&self, query: u32, candidates: Shard) -> &[u32] {
        between(self.of(query), candidates)
    }

    fn push(
        &mut self,
        query: u32,
        set: impl IntoIterator<Item = u32>,
    ) -> Result<(), RelevanceError> {
        let before = self.indices.len();
        for candidate in set {
            if candidate >= self.candidates {
                let candidates = self.candidates;
                return Err(RelevanceError::OutOfRange { query, candidate, candidates });
            }
            if self.indices[before..].last().is_some_and(|&last| last >= candidate) {
                return Err(RelevanceError::Unsorted { query, candidate });
            }
            self.indices.push(candidate);
        }
        if self.indices.len() == before {
            return Err(RelevanceError::Empty { query });
        }
        self.offsets.push(u32::try_from(self.indices.len()).map_err(|_| RelevanceError::TooMany)?);
        Ok(())
    }
}

/// The part of an ascending list that lies in `range`.
pub(crate) fn between(ascending: &[u32], range: Shard) -> &[u32] {
    let start = ascending.partition_point(|&index| index < range.start);
    let end = ascending.partition_point(|&index| index < range.end);
    &ascending[start..end]
}

/// Position of each image's first caption, and the number of captions at the end.
fn first_captions(counts: &[u32]) -> Result<Vec<u32>, RelevanceError> {
    let mut first = Vec::with_capacity(counts.len() + 1);
    let mut next = 0_u32;
    first.push(next);
    for &count in counts {
        next = next.checked_add(count).ok_or(RelevanceError::TooMany)?;
        first.push(next);
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn shard(start: u32, end: u32) -> Shard {
        Shard { start, end }
    }

    #[test]
    fn captions_and_images_are_each_others_inverse() {
        let counts = [2, 1, 3];
        let images = Relevance::captions_of_images(shard(1, 3), &counts).unwrap();
        assert_eq!(images.candidates(), 6);
        assert_eq!(images.of(1), [2]);
        assert_eq!(images.of(2), [3, 4, 5]);
        let captions = Relevance::images_of_captions(shard(1, 5), &counts).unwrap();
        assert_eq!(captions.candidates(), 3);
        let owners: Vec<u32> = (1..5).map(|caption| captions.of(caption)[0]).collect();
        assert_eq!(owners, [0, 1, 2, 2]);
    }

    #[test]
    fn sets_that_cannot_be_ranked_are_refused() {
        let refuse = |sets: &[&[u32]]| {
            let sets = sets.iter().map(|set| set.iter().copied());
            Relevance::new(shard(7, 9), 3, sets).unwrap_err().to_string()
        };
        assert_eq!(refuse(&[&[0], &[]]), "query 8 has no relevant candidate");
        assert_eq!(refuse(&[&[3], &[0]]), "query 7 names candidate 3, but there are 3");
        assert_eq!(refuse(&[&[1, 1], &[0]]), "query 7 lists candidate 1 twice or out of order");
        assert_eq!(refuse(&[&[1]]), "queries 7..9 need one set of relevant candidates each, got 1");
        assert_eq!(
            Relevance::captions_of_images(shard(0, 1), &[u32::MAX, 1]),
            Err(RelevanceError::TooMany)
        );
    }
}
