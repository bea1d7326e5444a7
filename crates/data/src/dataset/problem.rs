//! What can be wrong with a dataset, and the bounded list in which it is reported.
//!
//! Invariant: at most [`SHOWN`] problems are kept and the rest is counted, so that a million bad
//! lines cost neither memory nor patience. What a message repeats of a file is one short line.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use orchestrator_types::wording::one_line;

use super::Manifest;

/// How many problems one dataset reports in full.
const SHOWN: usize = 20;

/// One thing that makes a dataset unusable.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// A folder or file cannot be read.
    #[error("cannot read {}; check that it exists and that you may read it", path.display())]
    Unreadable {
        /// Folder or file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The root is a file, or the data file a folder.
    #[error("{} is not a {expected}", path.display())]
    WrongKind {
        /// What was given.
        path: PathBuf,
        /// What was expected there.
        expected: &'static str,
    },
    /// Nothing to evaluate.
    #[error("{} holds no pictures; expected {expected}", place.display())]
    Empty {
        /// Folder or file.
        place: PathBuf,
        /// What would be a picture there.
        expected: &'static str,
    },
    /// A file's name is not text, so it cannot be a sample id.
    #[error("{}: the name is not valid UTF-8; rename it", path.display())]
    NameNotText {
        /// The file or folder.
        path: PathBuf,
    },
    /// A sub-folder that the class list does not name.
    #[error("folder `{}` has no entry in the class list{}; add one or remove the folder", one_line(.name), nearest(.near.as_deref()))]
    FolderWithoutClass {
        /// The folder's name.
        name: String,
        /// The class name closest to it.
        near: Option<String>,
    },
    /// The class list is not what it should be.
    #[error("{}: {}", file.display(), one_line(.reason))]
    ClassList {
        /// The file.
        file: PathBuf,
        /// What is wrong, with its place in the document.
        reason: String,
    },
    /// One line of a captions file is not what it should be.
    #[error("{}:{line}: {}", file.display(), one_line(.reason))]
    Line {
        /// The file.
        file: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// What is wrong.
        reason: String,
    },
    /// A layout that is not built yet.
    #[error("{}: captions are read from JSON Lines (.jsonl) only; {extension} is not built yet", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// Its extension.
        extension: String,
    },
}

fn nearest(name: Option<&str>) -> String {
    name.map_or_else(String::new, |name| format!(" (nearest: `{}`)", one_line(name)))
}

/// One thing that is odd about a dataset and does not stop it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// A class without a single picture: it takes part as a candidate only.
    ClassWithoutImages {
        /// The class.
        class: String,
    },
    /// Files that are not pictures by their names, and links that are not followed.
    SkippedFiles {
        /// How many.
        count: u64,
        /// The first of them by name.
        example: PathBuf,
    },
    /// Pictures that lie beside the class folders instead of inside one.
    OutsideClasses {
        /// How many.
        count: u64,
        /// The first of them by name.
        example: PathBuf,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClassWithoutImages { class } => {
                write!(f, "class `{class}` has no pictures; it stays a candidate")
            }
            Self::SkippedFiles { count, example } => write!(
                f,
                "skipped what is no picture by its name (.jpg, .jpeg, .png, .webp): {count}, for example {}",
                example.display()
            ),
            Self::OutsideClasses { count, example } => write!(
                f,
                "skipped pictures outside the class folders: {count}, for example {}",
                example.display()
            ),
        }
    }
}

/// All problems of one dataset.
#[derive(Debug)]
pub struct DatasetErrors {
    place: PathBuf,
    shown: Vec<Problem>,
    total: u64,
}

impl DatasetErrors {
    /// The first problems, in the order in which they were found.
    pub fn problems(&self) -> &[Problem] {
        &self.shown
    }

    /// How many there are in all.
    pub fn total(&self) -> u64 {
        self.total
    }
}

impl fmt::Display for DatasetErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.total == 1 { "" } else { "s" };
        write!(f, "dataset {}: {} problem{plural}", self.place.display(), self.total)?;
        for problem in &self.shown {
            write!(f, "\n  - {problem}")?;
            // These are items of a list: nobody walks the chain of each one later.
            let mut cause = std::error::Error::source(problem);
            while let Some(reason) = cause {
                write!(f, ": {reason}")?;
                cause = reason.source();
            }
        }
        match self.total - self.shown.len() as u64 {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

impl std::error::Error for DatasetErrors {}

/// Problems as they are found.
pub(super) struct Problems {
    errors: DatasetErrors,
}

impl Problems {
    pub(super) fn new(place: &Path) -> Self {
        Self { errors: DatasetErrors { place: place.to_owned(), shown: Vec::new(), total: 0 } }
    }

    pub(super) fn push(&mut self, problem: Problem) {
        self.errors.total += 1;
        if self.errors.shown.len() < SHOWN {
            self.errors.shown.push(problem);
        }
    }

    pub(super) fn unreadable(&mut self, path: &Path, source: io::Error) {
        self.push(Problem::Unreadable { path: path.to_owned(), source });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.errors.total == 0
    }

    pub(super) fn finish(self, manifest: Manifest) -> Result<Manifest, DatasetErrors> {
        if self.is_empty() { Ok(manifest) } else { Err(self.errors) }
    }
}
