//! Units of work: the smallest things leased, retried and committed.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use orchestrator_spec::ModelFacts;
use orchestrator_types::{
    Component, DatasetName, Digest, Precision, Shard, UnitId, below_data_root,
};
use serde::{Deserialize, Serialize};

use crate::UnitRange;

/// One unit of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unit {
    /// Position in the plan.
    pub id: UnitId,
    /// What it computes.
    pub work: Work,
    /// Rows that it is about: images, texts or queries.
    pub rows: u32,
    /// Units of one component are preferred in the order of their turns, then of their ids. Plans
    /// of before it existed have none, and go by ids.
    #[serde(default)]
    pub turn: u32,
    /// Units of one group read the same images in the same way: whoever has decoded them for one
    /// has them for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
}

/// A recipe and a shard of its images, by a number within the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupId(pub u32);

/// Identity of a recipe: what makes decoded samples reusable. `manifest` says which images,
/// `crop` what becomes of their pixels up to the bytes that a tower sees; normalisation follows
/// after, so that models that differ in nothing else share a recipe.
pub fn recipe(manifest: Digest, crop: &str) -> Digest {
    Digest::of(&[manifest.as_bytes().as_slice(), crop.as_bytes()].concat())
}

impl Unit {
    /// Units whose blobs it reads; all must be committed first.
    pub fn needs(&self) -> impl Iterator<Item = UnitRange> + use<> {
        let needs = match &self.work {
            Work::EncodeTexts(_) | Work::EncodeImages(_) => None,
            Work::Rank(rank) => Some([rank.text_units, rank.image_units]),
        };
        needs.into_iter().flatten()
    }

    /// The component that a slice must hold to run this unit.
    pub const fn component(&self) -> Component {
        match self.work {
            Work::EncodeTexts(_) => Component::Text,
            Work::EncodeImages(_) => Component::Vision,
            Work::Rank(_) => Component::Score,
        }
    }
}

/// What a unit computes. Self-contained but for the blobs that it needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Work {
    /// Text tower over a part of the distinct texts of a set.
    EncodeTexts(EncodeTexts),
    /// Vision tower over a shard of a dataset's images.
    EncodeImages(EncodeImages),
    /// Scores of a shard of queries against all candidates, ranked.
    Rank(Rank),
}

/// Where a path of an evaluation starts: at `base`, unless it is absolute. One below a data root
/// stays as it is, because each worker knows where its own root lies.
pub(crate) fn placed(base: &Path, path: &str) -> PathBuf {
    match below_data_root(path) {
        Some(_) => path.into(),
        None => base.join(path),
    }
}

/// Weights and the precision in which they compute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ModelSource {
    /// Model folder, absolute or below a data root (`NAME:rest`).
    pub folder: PathBuf,
    /// Digest of the weights that the plan was made for.
    pub weights: Digest,
    /// Number format of the forward pass.
    pub precision: Precision,
}

impl ModelSource {
    /// The model at `path`, which starts at `base` if it is relative.
    pub(crate) fn of(base: &Path, path: &str, facts: &ModelFacts, precision: Precision) -> Self {
        Self { folder: placed(base, path), weights: facts.weights_blake3, precision }
    }
}

/// A dataset as workers find it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DatasetSource {
    /// Its key in eval.yaml.
    pub name: DatasetName,
    /// Where and in which format.
    pub source: SourceKind,
    /// Digest of the sample list that the plan was made for.
    pub manifest: Digest,
}

/// Format and place of a dataset: absolute paths, or ones below a data root (`NAME:rest`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "format", rename_all = "snake_case")]
pub enum SourceKind {
    /// One sub-folder a class.
    #[serde(rename = "imagefolder")]
    ImageFolder {
        /// Folder of the class folders.
        root: PathBuf,
        /// Names, labels and templates.
        classes: Option<PathBuf>,
    },
    /// Lines of image and captions.
    Captions {
        /// The jsonl file.
        file: PathBuf,
    },
}

/// Which texts of a dataset are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextSet {
    /// Every class label in every template, class by class.
    Prompts,
    /// The first caption of each image.
    FirstCaptions,
    /// All captions, image by image.
    AllCaptions,
}

/// Which side queries which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Images against class embeddings (zero-shot classification).
    ImageToClass,
    /// Images against texts.
    ImageToText,
    /// Texts against images.
    TextToImage,
}

/// See [`Work::EncodeTexts`].
///
/// The distinct texts are rows, and rows are computed in tiles of at most `tile`; a part is the
/// tiles that *start* in its share of the rows ([`EncodeTexts::starts`]), so that no tile is cut.
/// Planner and executor both go by this: a plan bounds a part by [`EncodeTexts::most_rows`] before
/// anybody knows how many texts are distinct or how full the tiles are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncodeTexts {
    /// Whose text tower.
    pub model: ModelSource,
    /// Whose texts.
    pub dataset: DatasetSource,
    /// Which of them.
    pub texts: TextSet,
    /// This range of the distinct texts, from 0.
    pub part: u32,
    /// Number of ranges.
    pub parts: u32,
    /// Texts per dispatch to an accelerator. On the CPU it bounds nothing: each thread computes one
    /// tile at a time, nothing is read ahead, and so a slice has `threads` tiles in work.
    pub batch: u32,
    /// Texts computed together.
    pub tile: u32,
}

impl EncodeTexts {
    /// The rows, of `distinct` in all, at which tiles of this part start.
    pub fn starts(&self, distinct: u32) -> Range<u32> {
        let share = distinct.div_ceil(self.parts.max(1));
        let start = |part: u32| share.saturating_mul(part).min(distinct);
        start(self.part)..start(self.part.saturating_add(1))
    }

    /// Most rows that a part of a set of `texts` can have: its share, and the rest of a tile that
    /// starts in its last row. Fewer distinct texts than texts only make a share smaller.
    pub fn most_rows(texts: u32, parts: u32, tile: u32) -> u32 {
        let share = texts.div_ceil(parts.max(1));
        share.saturating_add(tile.saturating_sub(1)).min(texts)
    }
}

/// See [`Work::EncodeImages`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncodeImages {
    /// Whose vision tower.
    pub model: ModelSource,
    /// Whose images.
    pub dataset: DatasetSource,
    /// Which of them.
    pub shard: Shard,
    /// Images decoded and not yet encoded, at most.
    pub batch: u32,
    /// Images computed together.
    pub tile: u32,
    /// Whether an unreadable image is set aside (else it fails the unit).
    pub quarantine_bad_samples: bool,
    /// The [`recipe`] that the plan was made for. Plans of before it existed have none.
    #[serde(default)]
    pub recipe: Option<Digest>,
}

/// See [`Work::Rank`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// Gives labels, captions and their images.
    pub dataset: DatasetSource,
    /// Which texts are candidates or queries.
    pub texts: TextSet,
    /// Which side queries which.
    pub direction: Direction,
    /// Which queries.
    pub queries: Shard,
    /// Best candidates kept per query.
    pub depth: u32,
    /// Units that encode the texts.
    pub text_units: UnitRange,
    /// Units that encode the images: all of them for text → image, else the shard's own.
    pub image_units: UnitRange,
}
