//! Mistakes in an evaluation, and where they stand.
//!
//! Invariant: [`Problems`] is never empty and is in the order of the file.

use std::{collections::BTreeMap, fmt};

use crate::key_path::KeyPath;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A spot in the file; line and column count from 1.
    File {
        /// The file, as the caller named it.
        file: String,
        /// Line.
        line: u32,
        /// Column, in characters.
        column: u32,
    },
    /// An override on the command line, as typed.
    Flag(String),
}

/// One mistake, or one warning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where to look.
    pub place: Option<Place>,
    /// The path of the key (`sweep.precision[1]`); empty for the file as a whole.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// Every mistake that was found, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

/// Where the keys of an evaluation stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    pub(crate) file: String,
    pub(crate) spots: BTreeMap<KeyPath, Spot>,
    pub(crate) flags: Vec<(KeyPath, String)>,
}

/// Line and column, from 1.
pub(crate) type Position = (u32, u32);

/// Where one key and its value start. An entry of a list has no key: both are the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) key: Position,
    pub(crate) value: Position,
}

impl Problems {
    /// `Err` with every problem in order, or `value` if there is none.
    pub(crate) fn none_or<T>(mut problems: Vec<Problem>, value: T) -> Result<T, Self> {
        if problems.is_empty() {
            return Ok(value);
        }
        problems.sort();
        Err(Self(problems))
    }

    /// In the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl std::error::Error for Problems {}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)?;
        self.hint.iter().try_for_each(|hint| write!(f, "; {hint}"))
    }
}

/// One problem a line.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}
