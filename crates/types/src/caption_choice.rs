//! Which captions of an image take part in a task.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which captions of an image take part in retrieval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptionChoice {
    /// The first one.
    First,
    /// Every one; any matching caption counts.
    All,
}

impl CaptionChoice {
    /// The name used in eval.yaml and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::All => "all",
        }
    }
}

impl fmt::Display for CaptionChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
