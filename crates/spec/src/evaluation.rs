//! The validated content of one eval.yaml, and the trials that its sweep spans.
//!
//! Invariant: an [`Evaluation`] made by [`crate::parse`] names only datasets that it declares, has
//! at least one model, dataset and task, and no empty or repeating list. Whether its files exist is
//! not known here: [`crate::check`] compares it with facts.

use std::num::NonZeroU32;

use indexmap::IndexMap;
use orchestrator_types::{CaptionChoice, DatasetName, MemoryTerms, Precision, TrialId};
use serde::{Deserialize, Serialize};

use crate::Places;

/// What is to be evaluated. Paths are as written; relative ones start at the file's own folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evaluation {
    /// A title for people.
    pub name: String,
    /// The slowest axis of the sweep.
    pub models: Vec<Model>,
    /// In file order.
    pub datasets: IndexMap<DatasetName, Dataset>,
    /// In file order; every trial does all of them.
    pub tasks: Vec<Task>,
    /// Values of the axis `precision`.
    pub precisions: Vec<Precision>,
    /// Values of the axis `batch`.
    pub batches: Vec<Batch>,
    /// The axes after the models, in the order in which `sweep` names them.
    pub axes: [Axis; 2],
    /// How much memory each slice may use. Evaluations of before it existed have no such field.
    #[serde(default)]
    pub memory: MemoryTerms,
    /// Whether work is spread where that is not predicted to pay. Evaluations of before it existed
    /// leave it to the planner.
    #[serde(default)]
    pub split: Split,
    /// What a sample that cannot be read does to the run.
    pub on_bad_sample: OnBadSample,
    /// Where the keys stand in the file. Means something only beside that file, so it does not
    /// travel.
    #[serde(skip)]
    pub places: Places,
}

/// One model to evaluate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Folder in Hugging Face layout, as written.
    pub path: String,
}

/// One source of samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dataset {
    /// A folder for each class, images inside.
    ImageFolder {
        /// The folder of the class folders.
        path: String,
        /// File with names, labels and templates of the classes.
        classes: Option<String>,
    },
    /// Images with one or several captions each, as JSON lines.
    Captions {
        /// The file; image paths in it start at its folder.
        path: String,
    },
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Classification of images by the nearest class prompt.
    ZeroShot {
        /// The labelled dataset.
        dataset: DatasetName,
        /// Values of k for acc@k, each at least 1.
        top_k: Vec<u32>,
    },
    /// Images from captions and captions from images.
    Retrieval {
        /// The captioned dataset.
        dataset: DatasetName,
        /// Values of k for recall@k, each at least 1.
        recall_at: Vec<u32>,
        /// Which captions of an image take part.
        captions: CaptionChoice,
    },
}

/// An axis of the sweep besides the models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Number formats.
    Precision,
    /// Batch sizes.
    Batch,
}

/// How many samples go through a tower at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Batch {
    /// The planner chooses.
    Auto,
    /// This many.
    Fixed(NonZeroU32),
}

/// Over how many of the slices that are there work is spread. Changes no result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// As many as are predicted to end it first.
    #[default]
    Auto,
    /// All that can hold a part of it.
    Always,
    /// One, unless it takes more to hold every part.
    Never,
}

/// What a sample that cannot be read does to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBadSample {
    /// The run stops.
    Fail,
    /// The sample is left out, counted and named in the report.
    Quarantine,
}

/// One point of the sweep: one row of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Position in the product, from 0.
    pub id: TrialId,
    /// Index into [`Evaluation::models`].
    pub model: usize,
    /// The number format to compute in.
    pub precision: Precision,
    /// The batch size to use.
    pub batch: Batch,
}

impl Evaluation {
    /// The product of all axes: models first, then the axes as `sweep` names them, the last one
    /// fastest.
    pub fn trials(&self) -> Vec<Trial> {
        let points = (0..self.models.len()).flat_map(|model| {
            self.points().into_iter().map(move |(precision, batch)| (model, precision, batch))
        });
        (0..)
            .map(TrialId)
            .zip(points)
            .map(|(id, (model, precision, batch))| Trial { id, model, precision, batch })
            .collect()
    }

    fn points(&self) -> Vec<(Precision, Batch)> {
        let (precisions, batches) = (&self.precisions, &self.batches);
        match self.axes[0] {
            Axis::Precision => precisions
                .iter()
                .flat_map(|&precision| batches.iter().map(move |&batch| (precision, batch)))
                .collect(),
            Axis::Batch => batches
                .iter()
                .flat_map(|&batch| precisions.iter().map(move |&precision| (precision, batch)))
                .collect(),
        }
    }
}

impl Task {
    /// The name used in eval.yaml and reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::ZeroShot { .. } => "zero_shot",
            Self::Retrieval { .. } => "retrieval",
        }
    }

    /// The dataset it reads.
    pub const fn dataset(&self) -> &DatasetName {
        match self {
            Self::ZeroShot { dataset, .. } | Self::Retrieval { dataset, .. } => dataset,
        }
    }

    /// Which captions take part; none in zero-shot.
    pub const fn captions(&self) -> Option<CaptionChoice> {
        match self {
            Self::ZeroShot { .. } => None,
            Self::Retrieval { captions, .. } => Some(*captions),
        }
    }
}

impl Dataset {
    /// The path of the samples, as written.
    pub fn path(&self) -> &str {
        match self {
            Self::ImageFolder { path, .. } | Self::Captions { path } => path,
        }
    }
}
