//! Identities: same bits, different meaning, different type.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize, Serializer};

/// Text that cannot be a name: empty, too long, or with characters that a path, a label or a
/// terminal would not survive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a {what}: use 1 to {limit} letters, digits, `.`, `_` and `-`, starting with a letter or digit"
)]
pub struct ParseNameError {
    what: &'static str,
    text: String,
    limit: usize,
}

const NAME_LIMIT: usize = 128;

fn check_name(what: &'static str, text: &str) -> Result<(), ParseNameError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && text.len() <= NAME_LIMIT && text.chars().all(allowed) {
        Ok(())
    } else {
        Err(ParseNameError { what, text: text.to_owned(), limit: NAME_LIMIT })
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
        #[serde(try_from = "String")]
        // Names go everywhere, with every attempt and event: a clone is a counter.
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseNameError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                check_name($what, text)?;
                Ok(Self(text.into()))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.to_string()
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = ParseNameError;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }
    };
}

name!(
    /// One execution of an evaluation. A lower-case ULID: sorts by time, legal as a file name.
    RunId,
    "run id"
);
name!(
    /// A host in the cluster.
    NodeName,
    "node name"
);
name!(
    /// The piece of one device promised to one executor, `<node>.<number>`.
    SliceId,
    "slice id"
);
name!(
    /// One life of a worker process; a restarted worker is a new session.
    SessionId,
    "session id"
);
name!(
    /// The key of a dataset in eval.yaml.
    DatasetName,
    "dataset name"
);
name!(
    /// A folder of data under the name by which workers declare it.
    DataRootName,
    "name of a data root"
);

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// Position of a trial in the product of the sweep's axes, from 0.
    TrialId(u32)
);
number!(
    /// Position of a unit in its plan, from 0.
    UnitId(u32)
);
number!(
    /// Identity of one attempt. Strictly increasing over the life of a store, so that a late
    /// result of a revoked attempt is recognised and refused.
    FencingToken(u64)
);

/// Identity of a sample inside its dataset: the image's path relative to the dataset's root, with
/// `/` between parts. Any text a file system can hold, so it is not restricted like a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SampleId(pub String);

impl fmt::Display for SampleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_a_folder_are_refused() {
        for text in ["", "..", "a/b", "-x", "a b", "é", &"x".repeat(129)] {
            assert!(text.parse::<DatasetName>().is_err(), "{text:?}");
        }
        for text in ["fluent", "imagenet-1k_v2.1", "0"] {
            assert_eq!(text.parse::<DatasetName>().unwrap().as_str(), text);
        }
    }
}
