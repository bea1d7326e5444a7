//! The tasks of eval.yaml and the figures that they give.

use indexmap::IndexMap;
use orchestrator_types::CaptionChoice;
use serde::{Deserialize, Serialize};

use crate::{
    partial::{ClassCount, MergeError, Partial},
    ranks::RankCounts,
};

/// A task and what it reports.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TaskKind {
    /// Classification of images by the nearest class embedding.
    ZeroShot {
        /// Each `k` of `acc<k>`.
        top_k: Vec<u32>,
    },
    /// Captions looked up by image, and images by caption.
    Retrieval {
        /// Each `k` of recall at `k`.
        recall_at: Vec<u32>,
        /// Which captions of an image are candidates and queries.
        captions: CaptionChoice,
    },
}

/// Figures by name, in the order of the report. A figure over no samples is `None` (`null`), never
/// NaN and never zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Metrics(pub IndexMap<String, Option<f64>>);

impl TaskKind {
    /// The task's name in eval.yaml and reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::ZeroShot { .. } => "zero_shot",
            Self::Retrieval { .. } => "retrieval",
        }
    }

    /// Which captions take part; none in zero-shot.
    pub const fn captions(&self) -> Option<CaptionChoice> {
        match self {
            Self::ZeroShot { .. } => None,
            Self::Retrieval { captions, .. } => Some(*captions),
        }
    }

    /// How many of the best candidates a ranking keeps per query for the predictions: the largest
    /// `k` asked for.
    pub fn depth(&self) -> u32 {
        let (Self::ZeroShot { top_k: ks } | Self::Retrieval { recall_at: ks, .. }) = self;
        ks.iter().copied().max().unwrap_or(0)
    }

    /// The result over no query: what merging starts from.
    pub fn empty(&self) -> Partial {
        match self {
            Self::ZeroShot { .. } => Partial::zero_shot(&[]),
            Self::Retrieval { .. } => Partial::Retrieval {
                image_to_text: RankCounts::default(),
                text_to_image: RankCounts::default(),
            },
        }
    }

    /// The figures of a merged result.
    ///
    /// Zero-shot: `acc<k>`, the share of images whose class is among the best `k`, and
    /// `mean_per_class_recall`, the unweighted mean over the classes that have images of the share
    /// of their images that were recognised at rank 1.
    ///
    /// Retrieval: `image_to_text_r<k>` (share of images with one of their captions among the best
    /// `k`), `text_to_image_r<k>`, the two median ranks, then the same recalls under the names of
    /// `CLIP_benchmark`: `text_retrieval_recall@k` = image → text, `image_retrieval_recall@k` =
    /// text → image.
    pub fn metrics(&self, partial: &Partial) -> Result<Metrics, MergeError> {
        let figures = match (self, partial) {
            (Self::ZeroShot { top_k }, Partial::ZeroShot { ranks, classes }) => {
                let recall = mean_recall(classes.values());
                let mean = ("mean_per_class_recall".to_owned(), recall);
                recalls("acc", top_k, ranks).chain([mean]).collect()
            }
            (
                Self::Retrieval { recall_at, .. },
                Partial::Retrieval { image_to_text, text_to_image },
            ) => recalls("image_to_text_r", recall_at, image_to_text)
                .chain(recalls("text_to_image_r", recall_at, text_to_image))
                .chain([
                    ("image_to_text_median_rank".to_owned(), image_to_text.median()),
                    ("text_to_image_median_rank".to_owned(), text_to_image.median()),
                ])
                .chain(recalls("text_retrieval_recall@", recall_at, image_to_text))
                .chain(recalls("image_retrieval_recall@", recall_at, text_to_image))
                .collect(),
            (kind, other) => {
                return Err(MergeError::Kind { expected: kind.name(), found: other.task() });
            }
        };
        Ok(Metrics(figures))
    }
}

impl Metrics {
    /// The figure of that name, if it was asked for and there was a sample.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied().flatten()
    }
}

fn recalls<'a>(
    prefix: &'a str,
    ks: &'a [u32],
    ranks: &'a RankCounts,
) -> impl Iterator<Item = (String, Option<f64>)> {
    ks.iter().map(move |&k| (format!("{prefix}{k}"), ranks.recall(k)))
}

fn mean_recall<'a>(classes: impl Iterator<Item = &'a ClassCount>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0_u32);
    for class in classes.filter(|class| class.total > 0) {
        sum += class.right as f64 / class.total as f64;
        count += 1;
    }
    (count > 0).then(|| sum / f64::from(count))
}
