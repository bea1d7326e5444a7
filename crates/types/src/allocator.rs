//! Settings of libtorch's caching allocator, as `PYTORCH_ALLOC_CONF` spells them.
//!
//! libtorch reads them late, and not at all where there is no GPU, so that a misspelt one would be
//! accepted there and ignored. Invariant: what passes here, libtorch 2.11 accepts (crate `torch`
//! tests that), and nothing in it works against the quota.

mod error;
mod keys;
#[cfg(test)]
mod tests;
mod value;

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

pub use error::AllocatorSettingsError;

use self::keys::{EXPANDABLE, KEYS, LARGE_SEGMENT, LARGE_SEGMENT_MIB, MAX_ROUNDING, MAX_SPLIT};

/// Settings as `name:value,name:value`; what is not named has libtorch's default. Equal if they
/// mean the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct AllocatorSettings(BTreeMap<&'static str, String>);

impl AllocatorSettings {
    /// Reads `text`, or tells everything that is wrong with it.
    ///
    /// # Errors
    /// At least one.
    pub fn examine(text: &str) -> Result<Self, Vec<AllocatorSettingsError>> {
        let (mut settings, mut wrong) = (Self::default(), Vec::new());
        let mut named = Vec::new();
        for entry in entries(text) {
            match keys::read(entry) {
                Ok((name, _)) if named.contains(&name) => {
                    wrong.push(AllocatorSettingsError::Twice(name));
                }
                Ok((name, value)) => {
                    named.push(name);
                    settings.0.insert(name, value);
                }
                Err(error) => wrong.push(error),
            }
        }
        wrong.extend(settings.contradictions());
        if wrong.is_empty() { Ok(settings) } else { Err(wrong) }
    }

    /// What `name` is set to, if it is.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Everything that is set, in the order in which it is written.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        KEYS.iter().filter_map(|key| Some((key.name, self.get(key.name)?)))
    }

    /// Size of large segments in MiB, set or not. libtorch takes no limit below it.
    pub fn large_segment_mib(&self) -> u64 {
        self.mib(LARGE_SEGMENT).unwrap_or(LARGE_SEGMENT_MIB)
    }

    /// A regular expression that every right text matches: keys and the shapes of values, not
    /// their ranges.
    pub fn pattern() -> String {
        keys::pattern()
    }

    fn mib(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }

    fn contradictions(&self) -> impl Iterator<Item = AllocatorSettingsError> {
        let least = self.large_segment_mib();
        let below = [MAX_SPLIT, MAX_ROUNDING].into_iter().filter_map(move |key| {
            let found = self.mib(key).filter(|found| *found < least)?;
            Some(AllocatorSettingsError::BelowLargeSegment { key, found, least })
        });
        let both = self.get(EXPANDABLE) == Some("True") && self.get(MAX_SPLIT).is_some();
        below.chain(both.then_some(AllocatorSettingsError::ExpandableWithSplitLimit))
    }
}

impl FromStr for AllocatorSettings {
    type Err = AllocatorSettingsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::examine(text).map_err(|mut wrong| wrong.swap_remove(0))
    }
}

impl fmt::Display for AllocatorSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, value)) in self.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{name}:{value}")?;
        }
        Ok(())
    }
}

impl From<AllocatorSettings> for String {
    fn from(settings: AllocatorSettings) -> Self {
        settings.to_string()
    }
}

impl TryFrom<String> for AllocatorSettings {
    type Error = AllocatorSettingsError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// The settings, cut at the commas outside of brackets. Spaces mean nothing beside punctuation.
fn entries(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    let text = text.trim_matches(' ');
    let cut = move |c: char| {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        c == ',' && !inside
    };
    let all = (!text.is_empty()).then(|| text.split(cut));
    all.into_iter().flatten().map(|entry| entry.trim_matches(' '))
}
