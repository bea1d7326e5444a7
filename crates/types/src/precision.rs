//! Number formats of a forward pass.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The number format in which a component computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// IEEE single precision: the reference.
    Fp32,
    /// IEEE half precision.
    Fp16,
    /// bfloat16.
    Bf16,
    /// Eight-bit integers with scales.
    Int8,
}

/// Text that names no precision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a precision; expected fp32, fp16, bf16 or int8")]
pub struct ParsePrecisionError(String);

impl Precision {
    /// The name used in eval.yaml, plans and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }

    /// Bytes that one element takes.
    pub const fn element_bytes(self) -> u64 {
        match self {
            Self::Fp32 => 4,
            Self::Fp16 | Self::Bf16 => 2,
            Self::Int8 => 1,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = ParsePrecisionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Fp32, Self::Fp16, Self::Bf16, Self::Int8]
            .into_iter()
            .find(|precision| precision.name() == text)
            .ok_or_else(|| ParsePrecisionError(text.to_owned()))
    }
}
