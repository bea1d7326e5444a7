//! The result of a task over some of its queries.
//!
//! Invariant: partial results form a commutative monoid. [`Partial::merge`] is associative and
//! commutative, [`TaskKind::empty`](crate::TaskKind::empty) is its identity, and there is no
//! floating-point number in it; so any sharding, in any order, gives the same metrics to the bit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    ranker::Ranked,
    ranks::{RankCounts, RankCountsError},
};

/// Who is looked up with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Queries are images, candidates are captions.
    ImageToText,
    /// Queries are captions, candidates are images.
    TextToImage,
}

/// What a task has found for some of its queries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Partial {
    /// Images against classes.
    ZeroShot {
        /// Ranks of the right classes.
        ranks: RankCounts,
        /// Images of each class, by the class's index; classes without images are left out.
        classes: BTreeMap<u32, ClassCount>,
    },
    /// Images against captions, captions against images, or both.
    Retrieval {
        /// Ranks of the images' best captions.
        image_to_text: RankCounts,
        /// Ranks of the captions' images.
        text_to_image: RankCounts,
    },
}

/// How many images of one class were recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassCount {
    /// Images whose best class is the right one.
    pub right: u64,
    /// Images evaluated.
    pub total: u64,
}

/// Partial results that do not belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// Results of two kinds of task.
    #[error("a partial result of {found} cannot be merged into one of {expected}")]
    Kind {
        /// The kind merged into.
        expected: &'static str,
        /// The kind of the other.
        found: &'static str,
    },
    /// The ranks do not add up.
    #[error("the ranks of two partial results cannot be added")]
    Ranks(#[from] RankCountsError),
}

impl Partial {
    /// The result of a zero-shot ranking; each query's relevant candidate is its class.
    pub fn zero_shot(ranked: &[Ranked]) -> Self {
        let mut classes = BTreeMap::<u32, ClassCount>::new();
        for image in ranked {
            let class = classes.entry(image.best).or_default();
            class.total += 1;
            class.right += u64::from(image.rank == 1);
        }
        Self::ZeroShot { ranks: ranked.iter().collect(), classes }
    }

    /// The result of a retrieval ranking in one direction.
    pub fn retrieval(direction: Direction, ranked: &[Ranked]) -> Self {
        let (ranks, none) = (ranked.iter().collect(), RankCounts::default());
        match direction {
            Direction::ImageToText => Self::Retrieval { image_to_text: ranks, text_to_image: none },
            Direction::TextToImage => Self::Retrieval { image_to_text: none, text_to_image: ranks },
        }
    }

    /// The task's name in eval.yaml and reports.
    pub const fn task(&self) -> &'static str {
        match self {
            Self::ZeroShot { .. } => "zero_shot",
            Self::Retrieval { .. } => "retrieval",
        }
    }

    /// Number of images that were ranked.
    pub fn evaluated(&self) -> u64 {
        match self {
            Self::ZeroShot { ranks, .. } => ranks.total(),
            Self::Retrieval { image_to_text, .. } => image_to_text.total(),
        }
    }

    /// Both results together. The queries of the two must be disjoint, which the plan's shards and
    /// the store's one result per unit see to; it cannot be told from the numbers.
    pub fn merge(self, other: Self) -> Result<Self, MergeError> {
        match (self, other) {
            (
                Self::ZeroShot { ranks, mut classes },
                Self::ZeroShot { ranks: more_ranks, classes: more_classes },
            ) => {
                for (class, more) in more_classes {
                    let count = classes.entry(class).or_default();
                    *count = count.checked_add(more).ok_or(RankCountsError::TooMany)?;
                }
                Ok(Self::ZeroShot { ranks: ranks.merge(more_ranks)?, classes })
            }
            (
                Self::Retrieval { image_to_text, text_to_image },
                Self::Retrieval { image_to_text: more_images, text_to_image: more_texts },
            ) => Ok(Self::Retrieval {
                image_to_text: image_to_text.merge(more_images)?,
                text_to_image: text_to_image.merge(more_texts)?,
            }),
            (left, right) => Err(MergeError::Kind { expected: left.task(), found: right.task() }),
        }
    }
}

impl ClassCount {
    fn checked_add(self, other: Self) -> Option<Self> {
        Some(Self {
            right: self.right.checked_add(other.right)?,
            total: self.total.checked_add(other.total)?,
        })
    }
}

#[cfg(test)]
mod tests;
