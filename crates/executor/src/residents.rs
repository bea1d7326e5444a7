//! What stays in memory between units: models, datasets, tokenised texts, text embeddings.
//!
//! Invariant: whatever is handed out was made from bytes with the digest in the assignment. Only
//! what a unit needs is loaded: a slice that encodes images never holds a text tower.
//!
//! Everything that stays is leased. Bounded in number, each kind by itself, and by the quota: when a
//! unit needs room, what was not used for longest goes first, texts before weights.

use std::path::Path;

use orchestrator_data::{preprocess::Recipe, tokenizer::Tokenizer};
use orchestrator_engine::{Attention, TextEncoder, VisionEncoder};
use orchestrator_files::Files;
use orchestrator_footprint::Kind;
use orchestrator_ledger::Lease;
use orchestrator_model::ModelFolder;
use orchestrator_proto::domain::{DatasetSource, MOST_TOWERS, ModelSource};
use orchestrator_types::{ByteCount, Component, Digest};

use crate::{
    dataset::ResidentDataset,
    error::ExecuteError,
    recent::Recent,
    slice::{Slice, sum},
    text_matrix::TextMatrix,
    text_rows::{TextRows, TextRowsKey},
    tower::{Loaded, State, Wanted, need},
};

const MOST_DATASETS: usize = 8;
/// Tokenised texts and text embeddings are as large as their set: the one in use, and the next.
const MOST_TEXTS: usize = 2;

/// Everything that is kept.
#[derive(Debug)]
pub(crate) struct Residents {
    /// What may be opened.
    pub(crate) files: Files,
    pub(crate) models: Recent<ModelSource, ResidentModel>,
    pub(crate) datasets: Recent<DatasetSource, ResidentDataset>,
    pub(crate) texts: Recent<TextRowsKey, Leased<TextRows>>,
    pub(crate) matrices: Recent<Vec<Digest>, Leased<TextMatrix>>,
}

/// What stays when room is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep<'a> {
    /// The tower that the room is for.
    pub(crate) tower: Option<(&'a ModelSource, Component)>,
    /// Whether the newest texts are in use.
    pub(crate) texts: bool,
}

/// A value with the lease of its bytes, where host memory is leased.
#[derive(Debug)]
pub(crate) struct Leased<T> {
    pub(crate) value: T,
    _lease: Option<Lease>,
}

impl<T> Leased<T> {
    pub(crate) const fn new(value: T, lease: Option<Lease>) -> Self {
        Self { value, _lease: lease }
    }
}

impl Residents {
    pub(crate) fn new(files: Files) -> Self {
        Self {
            files,
            // As many as a plan counts on where trials share their images.
            models: Recent::new(MOST_TOWERS),
            datasets: Recent::new(MOST_DATASETS),
            texts: Recent::new(MOST_TEXTS),
            matrices: Recent::new(MOST_TEXTS),
        }
    }

    /// A model that was opened before.
    pub(crate) fn open_model(&self, source: &ModelSource) -> Result<&ResidentModel, ExecuteError> {
        self.models.get(source).ok_or_else(|| {
            ExecuteError::Mismatch(format!("model {} is not open", source.folder.display()))
        })
    }

    /// Weights now in memory, over all models.
    pub(crate) fn weights(&self) -> ByteCount {
        self.models.values().map(ResidentModel::weights).fold(ByteCount::ZERO, |sum, bytes| {
            sum.checked_add(bytes).expect("weights in memory fit 64 bits")
        })
    }

    /// Makes room for a tower, for `passes` passes of `rows` rows at once, and for `beside` bytes of
    /// inputs and results, as far as it can be had by letting others go.
    pub(crate) fn make_room_for_tower(
        &mut self,
        slice: &Slice,
        source: &ModelSource,
        component: Component,
        (rows, passes): (u32, u32),
        beside: ByteCount,
    ) -> Result<(), ExecuteError> {
        let files = &self.files;
        let model =
            self.models.get_or_make(source.clone(), || ResidentModel::open(source, files))?;
        let tower = match model.state(component) {
            Some(state) => state.usual(passes),
            None => need(model.folder(), slice, component, source.precision, (rows, passes)),
        };
        let keep = Keep { tower: Some((source, component)), texts: component == Component::Text };
        self.make_room(slice, sum(tower, beside), keep)
    }

    /// Lets go, until `bytes` are free, of what was not used for longest: texts before towers.
    pub(crate) fn make_room(
        &mut self,
        slice: &Slice,
        bytes: ByteCount,
        keep: Keep<'_>,
    ) -> Result<(), ExecuteError> {
        let wanted = bytes.min(slice.ledger().quota());
        let lacking = || slice.ledger().free() < wanted;
        if slice.kind() == Kind::Cpu {
            let newest = usize::from(keep.texts);
            while lacking() && (self.matrices.pop(newest) || self.texts.pop(newest)) {}
        }
        let mut gone = false;
        while lacking() && self.let_go(keep.tower) {
            gone = true;
        }
        if gone {
            slice.give_back_cache()?;
        }
        // Bytes outside of the allocator may have come back: it may take them now.
        Ok(slice.apply_limit()?)
    }

    /// Lets towers go until no more is held than the quota allows.
    pub(crate) fn keep_within_quota(&mut self, slice: &Slice) -> Result<(), ExecuteError> {
        let over = || slice.ledger().held() > slice.ledger().quota();
        while over() && (self.matrices.pop(0) || self.texts.pop(0) || self.let_go(None)) {}
        slice.give_back_cache()?;
        Ok(slice.apply_limit()?)
    }

    /// Lets one tower go; whether there was one.
    fn let_go(&mut self, keep: Option<(&ModelSource, Component)>) -> bool {
        let kept = |source: &ModelSource, component| keep == Some((source, component));
        let mine = |source: &ModelSource| keep.is_some_and(|(kept, _)| kept == source);
        // Other models first: the unit's own model is likely to be asked for its other tower.
        for own in [false, true] {
            for (source, model) in self.models.iter_mut().filter(|(source, _)| mine(source) == own)
            {
                if model.text.is_some() && !kept(source, Component::Text) {
                    model.text = None;
                    return true;
                }
                if model.vision.is_some() && !kept(source, Component::Vision) {
                    model.vision = None;
                    return true;
                }
            }
        }
        false
    }
}

/// A model folder and those parts of it that units have asked for so far.
#[derive(Debug)]
pub(crate) struct ResidentModel {
    source: ModelSource,
    files: Files,
    folder: ModelFolder,
    text: Option<Loaded<TextEncoder>>,
    vision: Option<Loaded<VisionEncoder>>,
}

impl ResidentModel {
    /// Opens the folder; loads no tower yet.
    pub(crate) fn open(source: &ModelSource, files: &Files) -> Result<Self, ExecuteError> {
        let folder = ModelFolder::open_in(&source.folder, files)?;
        let found = folder.weights_digest()?;
        if found != source.weights {
            let (what, place) = ("model", source.folder.clone());
            return Err(ExecuteError::OtherBytes { what, place, found, planned: source.weights });
        }
        let (source, files) = (source.clone(), files.clone());
        Ok(Self { source, files, folder, text: None, vision: None })
    }

    pub(crate) fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn tokenizer(&self) -> Result<Tokenizer, ExecuteError> {
        Ok(Tokenizer::open_in(self.path(), &self.files)?)
    }

    pub(crate) fn recipe(&self) -> Result<Recipe, ExecuteError> {
        let recipe = Recipe::open_in(self.path(), &self.files)?;
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

    /// The text tower, loaded if it was not yet. At most `rows` rows will pass at once.
    pub(crate) fn text(
        &mut self,
        slice: &Slice,
        rows: u32,
    ) -> Result<&Loaded<TextEncoder>, ExecuteError> {
        if self.text.is_none() {
            self.text = Some(Loaded::load(&self.folder, slice, self.wanted(rows))?);
        }
        Ok(self.text.as_ref().expect("loaded a line above"))
    }

    /// The vision tower, loaded if it was not yet. At most `rows` rows will pass at once.
    pub(crate) fn vision(
        &mut self,
        slice: &Slice,
        rows: u32,
    ) -> Result<&Loaded<VisionEncoder>, ExecuteError> {
        if self.vision.is_none() {
            self.vision = Some(Loaded::load(&self.folder, slice, self.wanted(rows))?);
        }
        Ok(self.vision.as_ref().expect("loaded a line above"))
    }

    const fn wanted(&self, rows: u32) -> Wanted {
        Wanted { precision: self.source.precision, rows, attention: Attention::Fused }
    }

    /// What is known of a tower that is loaded.
    fn state(&self, component: Component) -> Option<&State> {
        match component {
            Component::Text => self.text.as_ref().map(|tower| &*tower.state),
            Component::Vision => self.vision.as_ref().map(|tower| &*tower.state),
            Component::Score => None,
        }
    }

    fn weights(&self) -> ByteCount {
        let bytes = |component| self.folder.weight_bytes(component, self.source.precision);
        let text = self.text.as_ref().map_or(ByteCount::ZERO, |_| bytes(Component::Text));
        let vision = self.vision.as_ref().map_or(ByteCount::ZERO, |_| bytes(Component::Vision));
        text.checked_add(vision).expect("weights in memory fit 64 bits")
    }
}
