//! What can be wrong with a model folder, in words that name the file, the tensor and the way out.

use std::{fmt, path::PathBuf};

use orchestrator_types::ByteCount;

/// A folder that is not a model we can evaluate.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// There is nothing at the path, or it is not a folder.
    #[error("{}: no such model folder", .path.display())]
    NoFolder {
        /// The path as given.
        path: PathBuf,
    },
    /// A file that must be there is not.
    #[error("{}: missing file `{file}`; a model folder holds config.json and model.safetensors", .path.display())]
    MissingFile {
        /// The model folder.
        path: PathBuf,
        /// Name of the file inside the folder.
        file: &'static str,
    },
    /// A file is there and cannot be read.
    #[error("{}: cannot be read", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        #[source]
        source: std::io::Error,
    },
    /// A file is larger than any honest file of its kind.
    #[error("{}: more than {limit}, the most that a configuration may have", .path.display())]
    ConfigTooLarge {
        /// The file.
        path: PathBuf,
        /// The most that is read.
        limit: ByteCount,
    },
    /// Somebody wrote to the weights file after it was opened.
    #[error("{}: changed while it was read; leave the files of a model alone while it is evaluated", .path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// config.json is not JSON, or a key has the wrong type.
    #[error("{}: not a model configuration", .path.display())]
    ConfigSyntax {
        /// The file.
        path: PathBuf,
        /// Line, column and reason.
        #[source]
        source: serde_json::Error,
    },
    /// A key of config.json has a value that no model can have, or that is not built yet.
    #[error("{}: `{key}` is {found}; expected {expected}", .path.display())]
    ConfigValue {
        /// The file.
        path: PathBuf,
        /// Path of the key, with dots.
        key: String,
        /// The value.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// The folder holds a model of a family that is not built.
    #[error("{}: unknown architecture `{found}`; built so far: CLIPModel", .path.display())]
    UnknownArchitecture {
        /// The file.
        path: PathBuf,
        /// The name found there.
        found: String,
    },
    /// Weights are pickled, and reading a pickle runs code from it.
    #[error(
        "{}: a pickle, which can run any code when it is read; convert the weights to model.safetensors",
        .path.display()
    )]
    Pickle {
        /// The file.
        path: PathBuf,
    },
    /// Weights are cut into several files.
    #[error("{}: weights in several files are not built yet; save them as one model.safetensors", .path.display())]
    Sharded {
        /// The index file.
        path: PathBuf,
    },
    /// The weights file is damaged or hostile.
    #[error("{}: {problem}", .path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: HeaderProblem,
    },
    /// The weights file is whole, but its tensors are not those of the configured model.
    #[error("{}: {problems}", .path.display())]
    Tensors {
        /// The file.
        path: PathBuf,
        /// All that is wrong.
        problems: TensorProblems,
    },
}

/// What is wrong with a safetensors file, found before any tensor is looked at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderProblem {
    /// Too short to hold even the header's length.
    #[error("{bytes} bytes are too few for a safetensors file; the file is truncated")]
    TooShort {
        /// Size of the file.
        bytes: u64,
    },
    /// The header says that it is larger than we read.
    #[error("its header claims {claimed} bytes, more than the {limit} that we read")]
    TooLarge {
        /// Size claimed in the first eight bytes.
        claimed: u64,
        /// The most that we read.
        limit: u64,
    },
    /// The header says that it is larger than the file.
    #[error("its header claims {claimed} bytes, but the file has {bytes}; the file is truncated")]
    Truncated {
        /// Size claimed in the first eight bytes.
        claimed: u64,
        /// Size of the file.
        bytes: u64,
    },
    /// More tensors than any model of ours has.
    #[error("its header lists {found} tensors, more than the {limit} that we read")]
    TooManyTensors {
        /// Number of tensors listed.
        found: usize,
        /// The most that we read.
        limit: usize,
    },
    /// The tensors end before or after the file does.
    #[error("its tensors do not end where the file ends; the file is truncated or was added to")]
    Size,
    /// One name twice: readers would disagree about which of the two counts.
    #[error("its header names `{name}` twice")]
    NamedTwice {
        /// The name.
        name: String,
    },
    /// Bytes that belong to nothing could be claimed by several tensors.
    #[error("its tensor `{name}` has no elements")]
    NoElements {
        /// The tensor's name.
        name: String,
    },
    /// Not JSON, overlapping or out-of-range bytes, sizes that do not add up.
    #[error("its header is damaged: {0}")]
    Damaged(String),
}

/// One tensor that is not as the configuration says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorProblem {
    /// The configuration calls for it; the file does not have it.
    #[error("missing tensor `{name}` of shape {shape:?}")]
    Missing {
        /// Its name.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The file has it; the configuration has no place for it.
    #[error("extra tensor `{name}` of shape {shape:?}, for which the configuration has no place")]
    Extra {
        /// Its name.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Its shape is another one.
    #[error("tensor `{name}` has shape {found:?}; expected {expected:?} from the configuration")]
    Shape {
        /// Its name.
        name: String,
        /// The shape that the configuration calls for.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// Its numbers are of a type that we do not read.
    #[error("tensor `{name}` is stored as {found}; expected F32, F16 or BF16")]
    Element {
        /// Its name.
        name: String,
        /// The type in the file.
        found: String,
    },
}

/// All problems of a file's tensors: the first few in full, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorProblems {
    shown: Vec<TensorProblem>,
    total: usize,
}

/// Enough to see the pattern; a wrong width alone would give one problem per tensor.
const SHOWN: usize = 12;

impl TensorProblems {
    /// The problems, or `None` if there is none.
    pub(crate) fn of(mut all: Vec<TensorProblem>) -> Option<Self> {
        let total = all.len();
        all.truncate(SHOWN);
        (total > 0).then_some(Self { shown: all, total })
    }

    /// The first problems, in the order of the model's layers.
    pub fn shown(&self) -> &[TensorProblem] {
        &self.shown
    }

    /// How many problems there are, shown or not.
    pub const fn total(&self) -> usize {
        self.total
    }
}

impl fmt::Display for TensorProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.shown.as_slice() {
            return write!(f, "{only}");
        }
        write!(f, "{} tensors do not fit the configuration:", self.total)?;
        for problem in &self.shown {
            write!(f, "\n  {problem}")?;
        }
        match self.total - self.shown.len() {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}
