//! A dataset that stays open.

use std::sync::OnceLock;

use orchestrator_data::dataset::{CaptionChoice, Captions, Manifest, Source};
use orchestrator_files::Files;
use orchestrator_proto::domain::{DatasetSource, SourceKind, TextSet};

use crate::error::ExecuteError;

/// A checked dataset with the digest that the plan was made for.
#[derive(Debug)]
pub(crate) struct ResidentDataset {
    manifest: Manifest,
    first: OnceLock<Captions>,
    all: OnceLock<Captions>,
}

impl ResidentDataset {
    pub(crate) fn open(dataset: &DatasetSource, files: &Files) -> Result<Self, ExecuteError> {
        let (source, place) = match dataset.source.clone() {
            SourceKind::ImageFolder { root, classes } => {
                (Source::ImageFolder { root: root.clone(), classes }, root)
            }
            SourceKind::Captions { file } => (Source::Captions { file: file.clone() }, file),
        };
        let manifest = Manifest::open_in(&source, files)?;
        let (found, planned) = (manifest.digest(), dataset.manifest);
        if found != planned {
            return Err(ExecuteError::OtherBytes { what: "dataset", place, found, planned });
        }
        Ok(Self { manifest, first: OnceLock::new(), all: OnceLock::new() })
    }

    pub(crate) const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The texts of a set, in order.
    pub(crate) fn texts(&self, set: TextSet) -> Vec<String> {
        match set {
            TextSet::Prompts => self.manifest.prompts(),
            TextSet::FirstCaptions | TextSet::AllCaptions => self.captions(set).texts.clone(),
        }
    }

    /// Captions of each image. [`TextSet::Prompts`] belong to no image, so it is zero for all.
    pub(crate) fn caption_counts(&self, set: TextSet) -> Vec<u32> {
        let mut counts = vec![0; self.manifest.samples().len()];
        for &image in &self.captions(set).sample_of {
            counts[image as usize] += 1;
        }
        counts
    }

    fn captions(&self, set: TextSet) -> &Captions {
        static NONE: Captions = Captions { texts: Vec::new(), sample_of: Vec::new() };
        let (known, choice) = match set {
            TextSet::Prompts => return &NONE,
            TextSet::FirstCaptions => (&self.first, CaptionChoice::First),
            TextSet::AllCaptions => (&self.all, CaptionChoice::All),
        };
        known.get_or_init(|| self.manifest.captions(choice))
    }
}
