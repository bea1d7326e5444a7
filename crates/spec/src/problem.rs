//! Mistakes in an evaluation, and where they stand.
//!
//! Invariant: [`Problems`] are in the order of the file; what the command line set comes last.

use std::{collections::BTreeSet, fmt};

use crate::{
    key_path::KeyPath,
    outline::{Node, Position},
};

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
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

/// Where the keys of an evaluation stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    file: String,
    root: Node,
    /// What was set on the command line, in order, and the flag as typed.
    flags: Vec<(KeyPath, String)>,
}

impl Places {
    pub(crate) fn new(file: &str, root: Node, flags: Vec<(KeyPath, String)>) -> Self {
        Self { file: file.to_owned(), root, flags }
    }

    /// A problem with the value at `path`.
    pub(crate) fn value(&self, path: &KeyPath, message: String, hint: Option<String>) -> Problem {
        self.problem(path, |node| node.value, message, hint)
    }

    /// A problem with the key itself.
    pub(crate) fn key(&self, path: &KeyPath, message: String, hint: Option<String>) -> Problem {
        self.problem(path, |node| node.key, message, hint)
    }

    /// Whether somebody wrote the key at `path`; otherwise its value is a default. Without the file
    /// nobody can tell.
    pub(crate) fn wrote(&self, path: &KeyPath) -> bool {
        let set = self.flags.iter().any(|(set, _)| set.starts_with(path) || path.starts_with(set));
        set || self.file.is_empty() || self.root.nearest(path).1
    }

    fn problem(
        &self,
        path: &KeyPath,
        position: fn(&Node) -> Position,
        message: String,
        hint: Option<String>,
    ) -> Problem {
        let (node, exact) = self.root.nearest(path);
        let set_by = |set: &KeyPath| path.starts_with(set) || (!exact && set.starts_with(path));
        let flag = self.flags.iter().rev().find(|(set, _)| set_by(set));
        let place = if let Some((_, flag)) = flag {
            Some(Place::Flag(flag.clone()))
        } else if self.file.is_empty() {
            // An evaluation that came over the wire has left its file behind.
            None
        } else {
            let (line, column) = if exact { position(node) } else { node.key };
            Some(Place::File { file: self.file.clone(), line, column })
        };
        Problem { place, key: path.to_string(), message, hint }
    }
}

impl Problems {
    /// The problems in the order of the file.
    pub(crate) fn sorted(mut problems: Vec<Problem>) -> Self {
        problems.sort_by(|a, b| a.place.cmp(&b.place));
        Self(problems)
    }

    /// These and those of `others` that say something about other keys: one mistake is told once.
    #[must_use]
    pub fn and(self, others: Self) -> Self {
        let Self(mut problems) = self;
        let about: BTreeSet<String> = problems.iter().map(|problem| problem.key.clone()).collect();
        problems.extend(others.0.into_iter().filter(|other| !about.contains(&other.key)));
        Self::sorted(problems)
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl From<Problems> for Vec<Problem> {
    fn from(Problems(problems): Problems) -> Self {
        problems
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
