//! What can be wrong with the text of settings, and what to write instead.

use super::keys::names;

/// Text that is not a list of allocator settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocatorSettingsError {
    /// No such setting.
    #[error("the allocator has no setting `{key}`; {}", meant(*nearest))]
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
    #[error("the settings of the allocator have a comma too many; leave it out")]
    Comma,
    /// A setting named twice.
    #[error("`{0}` is given twice; keep one of them")]
    Twice(&'static str),
    /// A value that the setting does not take.
    #[error("`{key}` takes {expected}, not `{found}`{}", spelt(*nearest))]
    Value {
        /// The setting.
        key: &'static str,
        /// The value as written.
        found: String,
        /// What the setting takes.
        expected: String,
        /// The value that was probably meant.
        nearest: Option<&'static str>,
    },
    /// A size below that of large segments.
    #[error("`{key}` is {found}; write {least} (large_segment_size_mb) or more")]
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
        "`expandable_segments:True` and `max_split_size_mb` contradict each other; leave out \
         max_split_size_mb: expandable segments need no limit to splitting"
    )]
    ExpandableWithSplitLimit,
    /// The backend whose memory cannot be counted.
    #[error(
        "the backend `cudaMallocAsync` does not report its memory, so that no limit could be kept; \
         leave it out, or use native"
    )]
    UncountedBackend,
    /// A setting that something else decides.
    #[error("`{key}` cannot be set here: {reason}")]
    Refused {
        /// The setting.
        key: &'static str,
        /// What decides it.
        reason: &'static str,
    },
}

fn meant(nearest: Option<&str>) -> String {
    match nearest {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("settings are {}", names().collect::<Vec<_>>().join(", ")),
    }
}

fn spelt(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |value| format!("; did you mean `{value}`?"))
}
