//! What stays in memory between units: models, datasets, tokenised texts, text embeddings.
//!
//! Invariant: whatever is handed out was made from bytes with the digest in the assignment. Only
//! what a unit needs is loaded: a slice that encodes images never holds a text tower.
//!
//! Bounded in number, each kind by itself, so that an executor that serves many runs does not grow
//! for ever; what was not used for longest goes first. Absent on purpose: a bound in bytes. The plan
//! claims the bytes of what one run holds; what earlier runs left, up to
//! these numbers, comes on top of that, and nothing here sees how large it is.

use std::path::Path;

use orchestrator_data::{preprocess::Recipe, tokenizer::Tokenizer};
use orchestrator_engine::{TextEncoder, VisionEncoder};
use orchestrator_model::ModelFolder;
use orchestrator_proto::domain::{DatasetSource, ModelSource};
use orchestrator_types::{ByteCount, Component, Digest};

use crate::{
    dataset::ResidentDataset,
    error::ExecuteError,
    recent::Recent,
    text_matrix::TextMatrix,
    text_rows::{TextRows, TextRowsKey},
};

const MOST_MODELS: usize = 4;
const MOST_DATASETS: usize = 8;
/// Tokenised texts and text embeddings are as large as their set: the one in use, and the next.
const MOST_TEXTS: usize = 2;

/// Everything that is kept.
#[derive(Debug)]
pub(crate) struct Residents {
    pub(crate) models: Recent<ModelSource, ResidentModel>,
    pub(crate) datasets: Recent<DatasetSource, ResidentDataset>,
    pub(crate) texts: Recent<TextRowsKey, TextRows>,
    pub(crate) matrices: Recent<Vec<Digest>, TextMatrix>,
}

impl Residents {
    pub(crate) fn new() -> Self {
        Self {
            models: Recent::new(MOST_MODELS),
            datasets: Recent::new(MOST_DATASETS),
            texts: Recent::new(MOST_TEXTS),
            matrices: Recent::new(MOST_TEXTS),
        }
    }

    /// Weights now in memory, over all models.
    pub(crate) fn weights(&self) -> ByteCount {
        self.models.values().map(ResidentModel::weights).fold(ByteCount::ZERO, |sum, bytes| {
            sum.checked_add(bytes).expect("weights in memory fit 64 bits")
        })
    }
}

/// A model folder and those parts of it that units have asked for so far.
#[derive(Debug)]
pub(crate) struct ResidentModel {
    source: ModelSource,
    folder: ModelFolder,
    text: Option<TextEncoder>,
    vision: Option<VisionEncoder>,
}

impl ResidentModel {
    /// Opens the folder; loads no tower yet.
    pub(crate) fn open(source: &ModelSource) -> Result<Self, ExecuteError> {
        let folder = ModelFolder::open(&source.folder)?;
        let found = folder.weights_digest();
        if found != source.weights {
            let (what, place) = ("model", source.folder.clone());
            return Err(ExecuteError::OtherBytes { what, place, found, planned: source.weights });
        }
        Ok(Self { source: source.clone(), folder, text: None, vision: None })
    }

    pub(crate) fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn tokenizer(&self) -> Result<Tokenizer, ExecuteError> {
        Ok(Tokenizer::open(self.path())?)
    }

    pub(crate) fn recipe(&self) -> Result<Recipe, ExecuteError> {
        let recipe = Recipe::open(self.path())?;
        let side = self.folder.config().vision.image_size;
        if recipe.size() == (side, side) {
            return Ok(recipe);
        }
        let (width, height) = recipe.size();
        Err(ExecuteError::Mismatch(format!(
            "model {}: preprocessor_config.json makes images of {width} × {height} pixels, \
             config.json wants {side} × {side}",
            self.path().display()
        )))
    }

    /// The text tower, loaded if it was not yet.
    pub(crate) fn text(&mut self) -> Result<&TextEncoder, ExecuteError> {
        if self.text.is_none() {
            self.text = Some(TextEncoder::load(&self.folder, self.source.precision)?);
        }
        Ok(self.text.as_ref().expect("loaded a line above"))
    }

    /// The vision tower, loaded if it was not yet.
    pub(crate) fn vision(&mut self) -> Result<&VisionEncoder, ExecuteError> {
        if self.vision.is_none() {
            self.vision = Some(VisionEncoder::load(&self.folder, self.source.precision)?);
        }
        Ok(self.vision.as_ref().expect("loaded a line above"))
    }

    fn weights(&self) -> ByteCount {
        let bytes = |component| self.folder.weight_bytes(component, self.source.precision);
        let text = self.text.as_ref().map_or(ByteCount::ZERO, |_| bytes(Component::Text));
        let vision = self.vision.as_ref().map_or(ByteCount::ZERO, |_| bytes(Component::Vision));
        text.checked_add(vision).expect("weights in memory fit 64 bits")
    }
}
