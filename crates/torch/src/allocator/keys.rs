//! The allocator settings that libtorch 2.11 knows, and the values that it takes for each.
//!
//! Invariant: a value that passes here passes in libtorch, which would not say a word about a
//! wrong one on machines without CUDA support.

use super::settings::SettingsError;

/// What a setting's value may be.
#[derive(Clone, Copy, Debug)]
enum Form {
    Truth,
    /// A whole number of MiB, of this or more.
    Mebibytes(u64),
    /// Between 0 and 1, both excluded or both included.
    Share {
        with_ends: bool,
    },
    /// A power of two up to this.
    PowerOfTwo(u64),
    /// One power of two, or a list as `[256:1,512:2,>:8]`.
    Divisions,
    Backend,
}

/// A setting.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    form: Form,
    /// What puts the setting back. `None`: libtorch does so itself whenever settings are applied,
    /// except for those in [`LASTING`].
    pub(super) default: Option<&'static str>,
}

const fn key(name: &'static str, form: Form, default: Option<&'static str>) -> Key {
    Key { name, form, default }
}

pub(super) const EXPANDABLE: &str = "expandable_segments";
pub(super) const LARGE_SEGMENT: &str = "large_segment_size_mb";
pub(super) const LARGE_SEGMENT_DEFAULT: u64 = 20;
pub(super) const MAX_SPLIT: &str = "max_split_size_mb";
pub(super) const MAX_ROUNDING: &str = "max_non_split_rounding_mb";
/// Has no value that means "not set", and libtorch does not put it back either.
pub(super) const LASTING: &str = "pinned_reserve_segment_size_mb";

/// In the order in which they are written: libtorch checks the sizes after the first against it.
pub(super) const KEYS: [Key; 14] = [
    key(LARGE_SEGMENT, Form::Mebibytes(11), Some("20")),
    key(EXPANDABLE, Form::Truth, Some("False")),
    key(MAX_SPLIT, Form::Mebibytes(11), None),
    key(MAX_ROUNDING, Form::Mebibytes(11), Some("20")),
    key("garbage_collection_threshold", Form::Share { with_ends: false }, None),
    key("roundup_power2_divisions", Form::Divisions, None),
    key("per_process_memory_fraction", Form::Share { with_ends: true }, Some("1")),
    key("backend", Form::Backend, None),
    key("pinned_use_background_threads", Form::Truth, Some("False")),
    key("pinned_num_register_threads", Form::PowerOfTwo(128), Some("1")),
    key("pinned_use_cuda_host_register", Form::Truth, Some("False")),
    key(LASTING, Form::Mebibytes(1), None),
    key("release_lock_on_cudamalloc", Form::Truth, Some("False")),
    key("graph_capture_record_stream_reuse", Form::Truth, Some("False")),
];

/// Somebody's text as a message can repeat it: short, and without control characters.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(60).flat_map(char::escape_debug).collect()
}

/// The setting of that name.
pub(super) fn find(name: &str) -> Result<&'static Key, SettingsError> {
    KEYS.iter()
        .find(|key| key.name == name)
        .ok_or_else(|| SettingsError::UnknownKey { key: name.to_owned(), nearest: nearest(name) })
}

fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    let distance = |known: &str| strsim::damerau_levenshtein(&name, known);
    let near = |known: &&str| {
        let part = name.len() >= 3 && (known.contains(&name) || name.contains(*known));
        part || distance(known) <= name.chars().count().div_ceil(3)
    };
    KEYS.iter().map(|key| key.name).filter(near).min_by_key(|known| distance(known))
}

impl Key {
    /// The value in the form in which it is kept and written.
    pub(super) fn read(&self, value: &str) -> Result<String, SettingsError> {
        let kept = match self.form {
            Form::Truth => matches!(value, "True" | "False").then(|| value.to_owned()),
            Form::Mebibytes(least) => whole(value).filter(|n| *n >= least).map(|n| n.to_string()),
            Form::Share { with_ends } => share(value, with_ends),
            Form::PowerOfTwo(most) => {
                whole(value).filter(|n| n.is_power_of_two() && *n <= most).map(|n| n.to_string())
            }
            Form::Divisions => divisions(value),
            Form::Backend if value == "cudaMallocAsync" => {
                return Err(SettingsError::UncountedBackend);
            }
            Form::Backend => (value == "native").then(|| value.to_owned()),
        };
        kept.ok_or_else(|| SettingsError::Value {
            key: self.name,
            found: shown(value),
            expected: self.form.expected(),
        })
    }

    /// A value that the setting takes, for messages.
    pub(super) fn example(&self) -> &'static str {
        match self.form {
            Form::Truth => "True",
            Form::Mebibytes(_) => "64",
            Form::Share { .. } => "0.8",
            Form::PowerOfTwo(_) | Form::Divisions => "8",
            Form::Backend => "native",
        }
    }
}

impl Form {
    fn expected(self) -> String {
        match self {
            Self::Truth => "True or False".to_owned(),
            Self::Mebibytes(least) => format!("a whole number of MiB of {least} or more"),
            Self::Share { with_ends: false } => "a number between 0 and 1, without both".to_owned(),
            Self::Share { with_ends: true } => "a number from 0 to 1".to_owned(),
            Self::PowerOfTwo(most) => format!("a power of two from 1 to {most}"),
            Self::Divisions => "a power of two, or a list as [256:1,512:2,>:8]".to_owned(),
            Self::Backend => "native".to_owned(),
        }
    }
}

/// Digits alone: libtorch would also read what follows a sign or precedes a letter.
fn whole(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn share(text: &str, with_ends: bool) -> Option<String> {
    let share: f64 = text.parse().ok()?;
    let inside = share > 0.0 && share < 1.0;
    let end = with_ends && (0.0..=1.0).contains(&share);
    (inside || end).then(|| share.to_string())
}

fn divisions(text: &str) -> Option<String> {
    let Some(list) = text.strip_prefix('[') else {
        return whole(text).filter(|n| n.is_power_of_two()).map(|n| n.to_string());
    };
    let entries: Vec<_> = list.strip_suffix(']')?.split(',').collect();
    let read = entries.iter().enumerate().map(|(at, entry)| {
        let (size, parts) = entry.split_once(':')?;
        let known_size = if size == ">" {
            at + 1 == entries.len()
        } else {
            whole(size).is_some_and(u64::is_power_of_two)
        };
        let known_parts = whole(parts).is_some_and(|n| n == 0 || n.is_power_of_two());
        (known_size && known_parts).then_some(*entry)
    });
    Some(format!("[{}]", read.collect::<Option<Vec<_>>>()?.join(",")))
}
