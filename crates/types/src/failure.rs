//! Why an attempt ended without a result.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The class of a failed attempt. It decides what happens next, so it travels as an enum from the
/// executor to the report and is never guessed from text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// The input or the request itself is wrong: no retry can help.
    Invalid,
    /// A byte quota or a limit of the host was reached.
    Resource,
    /// The executor's process died.
    Crash,
    /// The worker went away, or the network did; says nothing about the unit.
    Infrastructure,
    /// A defect of ours, reported by the executor and survived by it.
    Internal,
}

impl FailureClass {
    /// The name used in events and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Resource => "resource",
            Self::Crash => "crash",
            Self::Infrastructure => "infrastructure",
            Self::Internal => "internal",
        }
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
