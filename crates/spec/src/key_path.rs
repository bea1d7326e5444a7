//! The path of a key inside eval.yaml: `models[0].path`, `datasets["v2.1"].format`.
//!
//! Invariant: the text form reads back as the same path.

use std::{fmt, str::FromStr};

/// Steps from the root of the document to a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyPath(pub(crate) Vec<Step>);

/// One step down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Key(String),
    Index(usize),
}

impl KeyPath {
    pub(crate) fn key(&self, key: &str) -> Self {
        self.then(Step::Key(key.to_owned()))
    }

    pub(crate) fn index(&self, index: usize) -> Self {
        self.then(Step::Index(index))
    }

    fn then(&self, step: Step) -> Self {
        Self(self.0.iter().cloned().chain([step]).collect())
    }

    pub(crate) fn starts_with(&self, prefix: &Self) -> bool {
        self.0.starts_with(&prefix.0)
    }
}

/// Whether a key can stand without quotes.
fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'))
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(position) => write!(f, "[{position}]")?,
                Step::Key(key) if !is_plain(key) => write!(f, "[{key:?}]")?,
                Step::Key(key) if index == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for KeyPath {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (mut steps, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let (step, after) = match rest.strip_prefix('[') {
                Some(inside) => bracketed(inside).ok_or(())?,
                None if steps.is_empty() => plain(rest).ok_or(())?,
                None => rest.strip_prefix('.').and_then(plain).ok_or(())?,
            };
            steps.push(step);
            rest = after;
        }
        if steps.is_empty() { Err(()) } else { Ok(Self(steps)) }
    }
}

fn plain(text: &str) -> Option<(Step, &str)> {
    let end = text.find(['.', '[']).unwrap_or(text.len());
    let (key, rest) = text.split_at(end);
    is_plain(key).then(|| (Step::Key(key.to_owned()), rest))
}

fn bracketed(text: &str) -> Option<(Step, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (digits, rest) = text.split_once(']')?;
        return Some((Step::Index(digits.parse().ok()?), rest));
    };
    let (key, rest) = quoted.split_once("\"]")?;
    (!key.contains('\\')).then(|| (Step::Key(key.to_owned()), rest))
}
