//! What a dataset holds: samples, classes and captions, found and checked without reading a pixel.
//!
//! Invariant: a [`Manifest`] is complete and in a fixed order that depends only on the files, never
//! on the file system's order; every problem of the data is reported at once. Pictures are not
//! decoded here: a broken one is found when its sample is evaluated, and quarantined there.

mod captions;
mod classes;
mod digest;
mod folder;
mod problem;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use orchestrator_files::Files;
use orchestrator_types::{ByteCount, SampleId};

pub use problem::{DatasetErrors, Problem, Warning};

use problem::Problems;

/// Where a dataset lies, and in which layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `root/CLASS/…/picture`: one sub-folder per class, searched to any depth.
    ImageFolder {
        /// Folder that holds the class folders.
        root: PathBuf,
        /// Names, labels and templates; without it every sub-folder is a class, its label is the
        /// folder's name with `_` and `-` read as spaces, and the only template is
        /// [`DEFAULT_TEMPLATE`].
        classes: Option<PathBuf>,
    },
    /// JSON Lines: one object per line, `image` (path, relative to the file's folder) and
    /// `captions` (list) or `caption`.
    Captions {
        /// The file.
        file: PathBuf,
    },
}

/// The prompt template of an image folder that comes without a class list.
pub const DEFAULT_TEMPLATE: &str = "a photo of a {}.";

/// One picture of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Path relative to the dataset's root, with `/` between parts.
    pub id: SampleId,
    /// The file to open.
    pub path: PathBuf,
    /// The file's size when the dataset was opened.
    pub bytes: ByteCount,
    /// Position of its class in [`Manifest::classes`]; `None` where the dataset has no classes.
    pub label: Option<u32>,
}

/// One class of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// The folder's name.
    pub name: String,
    /// What goes into the prompt templates.
    pub label: String,
}

/// Which captions of a picture a task uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptionChoice {
    /// The first of each sample.
    First,
    /// All of each sample.
    All,
}

/// Captions in sample order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captions {
    /// The texts; those of one sample are neighbours, in file order.
    pub texts: Vec<String>,
    /// For each text, the position of its sample in [`Manifest::samples`]; never decreasing.
    pub sample_of: Vec<u32>,
}

/// The checked content of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    samples: Vec<Sample>,
    classes: Vec<Class>,
    templates: Vec<String>,
    // One list per sample; empty for a dataset without captions.
    captions: Vec<Vec<String>>,
    warnings: Vec<Warning>,
}

impl Manifest {
    /// Finds and checks everything that `source` holds.
    ///
    /// # Errors
    /// All problems of the data together, each with its place.
    pub fn open(source: &Source) -> Result<Self, DatasetErrors> {
        Self::open_in(source, &Files::anywhere())
    }

    /// As [`Manifest::open`], and opens no file that `files` does not admit. Pictures are not opened
    /// here.
    ///
    /// # Errors
    /// As [`Manifest::open`].
    pub fn open_in(source: &Source, files: &Files) -> Result<Self, DatasetErrors> {
        let mut problems = Problems::new(source.place());
        let manifest = match source {
            Source::ImageFolder { root, classes } => {
                folder::read(root, classes.as_deref(), files, &mut problems)
            }
            Source::Captions { file } => captions::read(file, files, &mut problems),
        };
        if manifest.samples.is_empty() && problems.is_empty() {
            let expected = match source {
                Source::ImageFolder { .. } => {
                    "files named .jpg, .jpeg, .png or .webp in one folder per class"
                }
                Source::Captions { .. } => "one JSON object per line",
            };
            problems.push(Problem::Empty { place: source.place().to_owned(), expected });
        }
        problems.finish(manifest)
    }

    /// The samples: of an image folder sorted by id, of captions in the file's order.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The classes; a sample's label is a position in this list.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// Prompt templates, each with exactly one `{}`.
    pub fn templates(&self) -> &[String] {
        &self.templates
    }

    /// What is odd about the data without making it unusable.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Every class in every template, class by class: class `c` in template `t` is at
    /// `c * templates + t`.
    pub fn prompts(&self) -> Vec<String> {
        let prompt = |class: &Class, template: &String| template.replacen("{}", &class.label, 1);
        let of_class = |class| self.templates.iter().map(move |template| prompt(class, template));
        self.classes.iter().flat_map(of_class).collect()
    }

    /// The captions that `choice` selects; empty for a dataset without captions.
    pub fn captions(&self, choice: CaptionChoice) -> Captions {
        let mut chosen = Captions::default();
        for (sample, texts) in (0..).zip(&self.captions) {
            let count = match choice {
                CaptionChoice::First => 1,
                CaptionChoice::All => texts.len(),
            };
            for text in texts.iter().take(count) {
                chosen.texts.push(text.clone());
                chosen.sample_of.push(sample);
            }
        }
        chosen
    }
}

impl Source {
    /// The folder or file that a message about the whole dataset names.
    fn place(&self) -> &Path {
        match self {
            Self::ImageFolder { root, .. } => root,
            Self::Captions { file } => file,
        }
    }
}

/// Whether a file is a picture by its name: `jpg`, `jpeg`, `png` or `webp` in any case.
fn has_picture_extension(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("");
    ["jpg", "jpeg", "png", "webp"].iter().any(|known| extension.eq_ignore_ascii_case(known))
}
