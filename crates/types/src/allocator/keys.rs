//! The allocator settings that libtorch 2.11 knows.

use super::{error::AllocatorSettingsError as Error, value::Form};
use crate::wording::{nearest, shown};

/// A setting.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    form: Form,
}

const fn key(name: &'static str, form: Form) -> Key {
    Key { name, form }
}

pub(super) const EXPANDABLE: &str = "expandable_segments";
pub(super) const LARGE_SEGMENT: &str = "large_segment_size_mb";
/// libtorch's default for it.
pub(super) const LARGE_SEGMENT_MIB: u64 = 20;
pub(super) const MAX_SPLIT: &str = "max_split_size_mb";
pub(super) const MAX_ROUNDING: &str = "max_non_split_rounding_mb";

/// In the order in which they are written: libtorch checks the sizes after the first against it.
pub(super) const KEYS: [Key; 14] = [
    key(LARGE_SEGMENT, Form::Mebibytes(11)),
    key(EXPANDABLE, Form::Truth),
    key(MAX_SPLIT, Form::Mebibytes(11)),
    key(MAX_ROUNDING, Form::Mebibytes(11)),
    key("garbage_collection_threshold", Form::Share),
    key("roundup_power2_divisions", Form::Divisions),
    key("per_process_memory_fraction", Form::Refused("the quota sets it; use `memory.quota`")),
    key("backend", Form::Backend),
    key("pinned_use_background_threads", Form::Truth),
    key("pinned_num_register_threads", Form::PowerOfTwo(128)),
    key("pinned_use_cuda_host_register", Form::Truth),
    key("pinned_reserve_segment_size_mb", Form::Mebibytes(1)),
    key("release_lock_on_cudamalloc", Form::Truth),
    key("graph_capture_record_stream_reuse", Form::Truth),
];

/// The settings that can be set.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let offered = KEYS.iter().filter(|key| !matches!(key.form, Form::Refused(_)));
    offered.map(|key| key.name)
}

/// One `name:value`; the value in the form in which it is kept and written.
pub(super) fn read(entry: &str) -> Result<(&'static str, String), Error> {
    if entry.is_empty() {
        return Err(Error::Comma);
    }
    let (name, value) = entry.split_once(':').unwrap_or((entry, ""));
    let (name, value) = (name.trim_matches(' '), value.trim_matches(' '));
    let key = KEYS.iter().find(|key| key.name == name).ok_or_else(|| unknown(name))?;
    if let Form::Refused(reason) = key.form {
        return Err(Error::Refused { key: key.name, reason });
    }
    if value.is_empty() {
        let example = format!("{}:{}", key.name, key.form.example());
        return Err(Error::NoValue { entry: shown(entry), example });
    }
    if matches!(key.form, Form::Backend) && value == "cudaMallocAsync" {
        return Err(Error::UncountedBackend);
    }
    let wrong = || Error::Value {
        key: key.name,
        found: shown(value),
        expected: key.form.expected(),
        nearest: key.form.nearest(value),
    };
    Ok((key.name, key.form.read(value).ok_or_else(wrong)?))
}

fn unknown(name: &str) -> Error {
    let names: Vec<_> = names().collect();
    Error::UnknownKey { key: shown(name), nearest: nearest(name, &names) }
}

pub(super) fn pattern() -> String {
    let settings = KEYS.iter().filter_map(|key| Some((key.name, key.form.pattern()?)));
    let one: Vec<String> = settings.map(|(name, value)| format!("{name} *: *{value}")).collect();
    let one = format!("({})", one.join("|"));
    format!("^ *{one} *(, *{one} *)*$")
}
