//! What a user says about memory.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{AllocatorSettings, ByteCount};

/// The terms of a run: how much each slice may use, and what follows when memory is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryTerms {
    /// Ceiling for each slice; `None`: what the slice offers. A slice's own ceiling wins if lower.
    pub quota: Option<ByteCount>,
    /// How far to go when memory is refused.
    pub on_oom: OnOom,
    /// Settings of the allocator; `None`: what suits the device.
    pub allocator: Option<AllocatorSettings>,
}

/// How far to go when memory is refused. A further step, towards cheaper number formats, will be a
/// variant of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnOom {
    /// The attempt fails.
    Fail,
    /// The batch is split, and what is finished is kept.
    #[default]
    Split,
}

impl OnOom {
    /// The name used in eval.yaml and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Split => "split",
        }
    }
}

impl fmt::Display for OnOom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
