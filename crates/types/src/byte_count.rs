//! Amounts of memory and storage, in bytes.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A number of bytes. Arithmetic is checked; text carries a unit (`"4 GiB"`, `"500 MB"`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteCount(u64);

/// Text that is not an amount of bytes with a unit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseByteCountError {
    /// The text is a bare number.
    #[error("`{0}` has no unit; write for example `{0} MiB`")]
    NoUnit(String),
    /// The text does not start with a decimal number.
    #[error("`{0}` is not an amount of bytes; write for example `4 GiB` or `500 MB`")]
    NotANumber(String),
    /// The unit is not one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB.
    #[error("`{unit}` is not a unit of bytes; use B, kB, MB, GB, TB, KiB, MiB, GiB or TiB")]
    UnknownUnit {
        /// The unit as written.
        unit: String,
    },
    /// The amount does not fit 64 bits.
    #[error("`{0}` is too large")]
    TooLarge(String),
}

const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

impl ByteCount {
    /// No bytes at all.
    pub const ZERO: Self = Self(0);

    /// `n` bytes.
    pub const fn bytes(n: u64) -> Self {
        Self(n)
    }

    /// `n` × 1024 bytes.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// `n` × 1024² bytes.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` × 1024³ bytes.
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// The amount in bytes.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Sum, or `None` if it does not fit 64 bits.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// Difference, or `None` if `other` is larger.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    /// `self` repeated `times` times, or `None` if it does not fit 64 bits.
    pub fn checked_mul(self, times: u64) -> Option<Self> {
        self.0.checked_mul(times).map(Self)
    }
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = "B";
        for next in ["KiB", "MiB", "GiB", "TiB"] {
            if value < 1024.0 {
                break;
            }
            value /= 1024.0;
            unit = next;
        }
        if unit == "B" { write!(f, "{} B", self.0) } else { write!(f, "{value:.2} {unit}") }
    }
}

impl FromStr for ByteCount {
    type Err = ParseByteCountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim();
        let split =
            trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let (number, unit) = (&trimmed[..split], trimmed[split..].trim());
        let value: f64 =
            number.parse().map_err(|_| ParseByteCountError::NotANumber(text.to_owned()))?;
        if unit.is_empty() {
            return Err(ParseByteCountError::NoUnit(trimmed.to_owned()));
        }
        let (_, factor) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(|| ParseByteCountError::UnknownUnit { unit: unit.to_owned() })?;
        // Whole numbers stay exact beyond 2^53.
        if let Ok(whole) = number.parse::<u64>() {
            return whole
                .checked_mul(*factor)
                .map(Self)
                .ok_or_else(|| ParseByteCountError::TooLarge(text.to_owned()));
        }
        let bytes = value * (*factor as f64);
        if bytes >= u64::MAX as f64 {
            return Err(ParseByteCountError::TooLarge(text.to_owned()));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "range checked above; a fraction of a byte is dropped"
        )]
        Ok(Self(bytes as u64))
    }
}

// Documents for people carry the unit; report and plan use fields named `…_bytes` with plain
// numbers, which is what this serialises to.
impl Serialize for ByteCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for ByteCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_with_units_is_read() {
        let cases = [
            ("4 GiB", ByteCount::gib(4)),
            ("500MB", ByteCount::bytes(500_000_000)),
            ("1.5 KiB", ByteCount::bytes(1536)),
            ("0 B", ByteCount::ZERO),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<ByteCount>().unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn bare_and_odd_text_is_refused_with_advice() {
        let message = |text: &str| text.parse::<ByteCount>().unwrap_err().to_string();
        assert_eq!(message("2"), "`2` has no unit; write for example `2 MiB`");
        assert_eq!(
            message("2 gigs"),
            "`gigs` is not a unit of bytes; use B, kB, MB, GB, TB, KiB, MiB, GiB or TiB"
        );
        assert!(message("-1 GiB").contains("is not an amount of bytes"));
        assert!(message("99999999999 TiB").contains("too large"));
    }

    #[test]
    fn display_uses_binary_units() {
        assert_eq!(ByteCount::bytes(12).to_string(), "12 B");
        assert_eq!(ByteCount::mib(1536).to_string(), "1.50 GiB");
    }
}
