//! What was found at an evaluation's paths. `data` and `model` gather it; [`crate::check`] judges
//! it.
//!
//! Invariant: [`Facts`] has one entry for each model, in order, and one for each dataset.

use std::collections::BTreeMap;

use orchestrator_types::{ByteCount, DatasetName, Digest};
use serde::{Deserialize, Serialize};

/// Everything known about the files of an evaluation. An `Err` lists why something cannot be used,
/// each reason a sentence that names the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// One for each model of the evaluation, in its order.
    pub models: Vec<Result<ModelFacts, Vec<String>>>,
    /// One for each dataset of the evaluation.
    pub datasets: BTreeMap<DatasetName, Result<DatasetFacts, Vec<DatasetProblem>>>,
}

/// Why a dataset cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetProblem {
    /// Which key of the dataset names the file that is to blame.
    pub key: DatasetKey,
    /// A sentence that names the file.
    pub message: String,
}

/// A key of a dataset that names files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DatasetKey {
    /// The samples.
    Path,
    /// The class list.
    Classes,
}

impl DatasetKey {
    /// As eval.yaml writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Classes => "classes",
        }
    }
}

/// A model folder, as far as its configuration and the header of its weights tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// The family, as its configuration names it: `CLIPModel`.
    pub architecture: String,
    /// Size of the weights in their file.
    pub weights_bytes: ByteCount,
    /// Number of weights.
    pub parameters: u64,
    /// Digest of the weights file.
    pub weights_blake3: Digest,
    /// Digest of the tokenizer's file or files.
    pub tokenizer_blake3: Digest,
    /// Resize, crop and normalisation in one line; equal lines prepare equal pixels.
    pub preprocess: String,
    /// The same without what is done to numbers: equal lines give equal bytes. Facts of before it
    /// was told have none.
    #[serde(default)]
    pub crop: String,
    /// Width and height of an input image, pixels.
    pub image_size: u32,
    /// Longest text, tokens.
    pub context: u32,
    /// Width of the shared embedding space.
    pub embedding_width: u32,
    /// Image tower.
    pub vision: TowerFacts,
    /// Text tower.
    pub text: TowerFacts,
}

/// The size of one tower of transformer layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TowerFacts {
    /// Number of layers.
    pub layers: u32,
    /// Width of the hidden state.
    pub width: u32,
    /// Attention heads.
    pub heads: u32,
    /// Width inside the feed-forward block.
    pub mlp: u32,
    /// Longest sequence that passes through, tokens (the class token counts).
    pub tokens: u32,
    /// Size of the tower's weights in their file, its projection included.
    pub weights_bytes: ByteCount,
}

/// A dataset, as its listing tells; no image was decoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetFacts {
    /// Number of images.
    pub samples: u32,
    /// Whether each image has a class.
    pub labelled: bool,
    /// Number of classes; 0 where there are no labels.
    pub classes: u32,
    /// Number of prompt templates; 0 where there are no labels.
    pub templates: u32,
    /// Number of captions if each image gives its first; 0 where there are no captions.
    pub captions_first: u32,
    /// Number of all captions; 0 where there are no captions.
    pub captions_all: u32,
    /// Digest of the samples with their sizes, classes and captions, of class labels and templates.
    pub manifest_digest: Digest,
    /// Digest of class labels and templates.
    pub templates_digest: Option<Digest>,
    /// What is odd and does no harm, a sentence each.
    pub warnings: Vec<String>,
}
