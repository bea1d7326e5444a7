//! Settings of libtorch's allocators, checked before libtorch sees them.
//!
//! Invariant: text that parses here means to libtorch what it says. libtorch itself ignores
//! misspelt settings as long as CUDA support is not loaded.

use std::{collections::BTreeMap, ffi::CString, fmt, str::FromStr};

use super::keys::{
    EXPANDABLE, KEYS, Key, LARGE_SEGMENT, LARGE_SEGMENT_DEFAULT, LASTING, MAX_ROUNDING, MAX_SPLIT,
    find, shown,
};
use crate::{
    TorchError,
    ffi::{done, orchestrator_torch_apply_settings},
};

/// Settings of the allocators as `name:value,name:value`; what is not named has libtorch's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<&'static str, String>);

/// Text that is not a list of allocator settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// No such setting.
    #[error("there is no allocator setting `{key}`; {}", meant(*nearest))]
    UnknownKey {
        /// The name as written.
        key: String,
        /// The setting that was probably meant.
        nearest: Option<&'static str>,
    },
    /// An entry that is not `name:value`.
    #[error("`{entry}` is not a setting with its value; write for example `{example}`")]
    NoValue {
        /// The entry as written.
        entry: String,
        /// An entry that would do.
        example: String,
    },
    /// Nothing between two commas, or beside the outer one.
    #[error("the allocator settings have a comma too many; leave it out")]
    Comma,
    /// A setting named twice.
    #[error("allocator setting `{0}` is given twice; leave one")]
    Twice(&'static str),
    /// A value that the setting does not take.
    #[error("allocator setting `{key}`: found `{found}`; write {expected}")]
    Value {
        /// The setting.
        key: &'static str,
        /// The value as written.
        found: String,
        /// What the setting takes.
        expected: String,
    },
    /// A size below that of large segments.
    #[error(
        "allocator setting `{key}`: found {found}; write {least} (large_segment_size_mb) or more"
    )]
    BelowLargeSegment {
        /// The setting.
        key: &'static str,
        /// The size as written, in MiB.
        found: u64,
        /// The size of large segments, in MiB.
        least: u64,
    },
    /// Two settings that do not go together.
    #[error(
        "allocator settings `expandable_segments:True` and `max_split_size_mb` do not go together; \
         leave out max_split_size_mb: expandable segments need no limit to splitting"
    )]
    ExpandableWithSplitLimit,
    /// The backend whose memory cannot be counted.
    #[error(
        "allocator setting `backend`: cudaMallocAsync does not count its memory, so that no limit \
         could be kept; leave the setting out, or write native"
    )]
    UncountedBackend,
}

fn meant(nearest: Option<&str>) -> String {
    if let Some(name) = nearest {
        return format!("did you mean `{name}`?");
    }
    let names: Vec<_> = KEYS.iter().map(|key| key.name).collect();
    format!("known are {}", names.join(", "))
}

/// Kinds of device that want settings of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// A GPU that is ours alone.
    WholeGpu,
    /// A GPU that others use too, a slice of one, or one behind a layer that intercepts CUDA.
    SharedOrMig,
    /// No GPU.
    Cpu,
}

/// The settings for a kind of device, unless somebody says otherwise.
///
/// A whole GPU has segments that grow, so that batches of varying size leave no slivers. Slices
/// and shared GPUs do without, since layers that intercept CUDA break them, and give unused
/// segments back early.
pub fn default_for(kind: DeviceKind) -> Settings {
    let entries: &[(&'static str, &str)] = match kind {
        DeviceKind::WholeGpu => &[(EXPANDABLE, "True")],
        DeviceKind::SharedOrMig => {
            &[(EXPANDABLE, "False"), ("garbage_collection_threshold", "0.8")]
        }
        DeviceKind::Cpu => &[],
    };
    Settings(entries.iter().map(|(name, value)| (*name, (*value).to_owned())).collect())
}

/// Puts the settings into force for the whole process, in place of all that were in force: what
/// they do not name goes back to libtorch's default. Comes after [`crate::cuda::load`] and before
/// [`super::initialise`].
///
/// libtorch reads PYTORCH_CUDA_ALLOC_CONF, or PYTORCH_ALLOC_CONF if that is unset, while CUDA
/// support is loaded. Settings applied later replace these, so that a variable has no effect
/// unless somebody passes [`super::environment`]'s settings here. `pinned_reserve_segment_size_mb`
/// alone cannot be taken back: a variable that sets it to anything else is refused.
pub fn apply(settings: &Settings) -> Result<(), TorchError> {
    let set = super::environment()?.unwrap_or_default();
    if let Some(value) = set.0.get(LASTING).filter(|value| settings.0.get(LASTING) != Some(value)) {
        return Err(TorchError(format!(
            "{LASTING}:{value} comes from the environment and cannot be taken back; unset it there \
             or put it into the settings"
        )));
    }
    let text = CString::new(settings.complete()).map_err(|error| TorchError(error.to_string()))?;
    // SAFETY: the text ends in zero, the message is valid for its capacity, both during the call.
    done(|message, capacity| unsafe {
        orchestrator_torch_apply_settings(text.as_ptr(), message, capacity)
    })
}

impl Settings {
    /// The settings, with the default of each that is not named and that would else stay as it is.
    fn complete(&self) -> String {
        // libtorch takes no value below the segments' size, not even its own default.
        let rounding = self.large_segment().max(LARGE_SEGMENT_DEFAULT).to_string();
        let default = |key: &Key| -> Option<&str> {
            if key.name == MAX_ROUNDING { Some(&rounding) } else { key.default }
        };
        let entries = KEYS.iter().filter_map(|key| {
            let value = self.0.get(key.name).map(String::as_str).or_else(|| default(key))?;
            Some(format!("{}:{value}", key.name))
        });
        entries.collect::<Vec<_>>().join(",")
    }

    fn size(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.parse().ok()
    }

    fn large_segment(&self) -> u64 {
        self.size(LARGE_SEGMENT).unwrap_or(LARGE_SEGMENT_DEFAULT)
    }

    fn checked(self) -> Result<Self, SettingsError> {
        let least = self.large_segment();
        for key in [MAX_SPLIT, MAX_ROUNDING] {
            if let Some(found) = self.size(key).filter(|found| *found < least) {
                return Err(SettingsError::BelowLargeSegment { key, found, least });
            }
        }
        let expandable = self.0.get(EXPANDABLE).is_some_and(|value| value == "True");
        if expandable && self.0.contains_key(MAX_SPLIT) {
            return Err(SettingsError::ExpandableWithSplitLimit);
        }
        Ok(self)
    }
}

impl FromStr for Settings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let mut settings = Self::default();
        for entry in entries(&text) {
            if entry.is_empty() {
                return Err(SettingsError::Comma);
            }
            let (name, value) = entry.split_once(':').unwrap_or((entry, ""));
            let key = find(name)?;
            if value.is_empty() {
                let example = format!("{}:{}", key.name, key.example());
                return Err(SettingsError::NoValue { entry: shown(entry), example });
            }
            if settings.0.insert(key.name, key.read(value)?).is_some() {
                return Err(SettingsError::Twice(key.name));
            }
        }
        settings.checked()
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = KEYS.iter().filter_map(|key| Some((key.name, self.0.get(key.name)?)));
        for (at, (name, value)) in set.enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{name}:{value}")?;
        }
        Ok(())
    }
}

/// Splits at the commas outside of brackets.
fn entries(text: &str) -> Vec<&str> {
    if text.is_empty() {
        return Vec::new();
    }
    let mut inside = false;
    text.split(|c: char| {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        c == ',' && !inside
    })
    .collect()
}

#[cfg(test)]
mod tests;
