//! `--set KEY=VALUE`: values that the command line puts over those of the file.

use std::{fmt, str::FromStr};

use orchestrator_types::wording::shown;
use serde_yaml::Value;

use crate::{
    key_path::{KeyPath, Step},
    outline::outline,
    wording::found,
};

/// One `--set KEY=VALUE`, for example `models[0].path=other/model` or `sweep.batch=[1, 7]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    pub(crate) path: KeyPath,
    value: String,
}

/// Text that is not `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not KEY=VALUE; write for example `models[0].path=other/model`")]
pub struct ParseOverrideError(String);

impl FromStr for Override {
    type Err = ParseOverrideError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseOverrideError(shown(text));
        let (path, value) = text.split_once('=').ok_or_else(error)?;
        let path = path.trim().parse().map_err(|()| error())?;
        Ok(Self { path, value: value.to_owned() })
    }
}

/// The flag as typed.
impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--set {}={}", self.path, shown(&self.value))
    }
}

impl Override {
    /// Puts the value into `document`, or says why there is no such place.
    pub(crate) fn apply(&self, document: &mut Value) -> Result<(), String> {
        let refused = outline(&self.value).err().and_then(|refusals| refusals.into_iter().next());
        if let Some(refusal) = refused {
            return Err(refusal.message);
        }
        let value = serde_yaml::from_str(&self.value).map_err(|error| error.to_string())?;
        *descend(document, &self.path.0)? = value;
        Ok(())
    }
}

/// The place that `steps` lead to; absent keys are made on the way.
fn descend<'a>(value: &'a mut Value, steps: &[Step]) -> Result<&'a mut Value, String> {
    let Some((step, rest)) = steps.split_first() else { return Ok(value) };
    if value.is_null() && matches!(step, Step::Key(_)) {
        *value = Value::Mapping(serde_yaml::Mapping::new());
    }
    let child = match (step, value) {
        (Step::Key(key), Value::Mapping(entries)) => {
            entries.entry(Value::from(key.as_str())).or_insert(Value::Null)
        }
        (Step::Index(index), Value::Sequence(items)) => {
            let length = items.len();
            items.get_mut(*index).ok_or_else(|| {
                format!("there is no entry {index}: the list has {length}, counted from 0")
            })?
        }
        (Step::Key(key), Value::Sequence(_)) => {
            return Err(format!("`{}` stands in a list; name its entry: `[0]`", shown(key)));
        }
        (Step::Key(key), other) => {
            return Err(format!("there is no key `{}` in {}", shown(key), found(other)));
        }
        (Step::Index(index), other) => {
            return Err(format!("there is no entry {index} in {}", found(other)));
        }
    };
    descend(child, rest)
}
